"""`mcae/best`: the same network and the same inference, trained better. Ours, not the paper's.

Pretraining is on pixels normalised within their patch, and longer on photographs; finetuning crops
photographs harder, pastes rectangles of other images, decays more and averages weights. Rows
between it and Table 1's say which of the two it is. smallNORB's augmentation was chosen on toys
that training lacked.
"""

from dataclasses import replace
from typing import Any

from torchcaps.experiments.mcae.setting import (
    ADAMW,
    JITTER,
    LIGHT,
    add,
    finetuning,
    pretraining,
    slug,
)
from torchcaps.experiments.mcae.table1 import COLUMNS, LARGE
from torchcaps.experiments.tables import Table, add_table
from torchcaps.train.recipe import OptimiserSpec, Recipe
from torchcaps.train.tasks import Classify

CROPS = {
    "smallNORB": (LIGHT,),
    "CIFAR-10": ("crop:4", "flip"),
    "Imagenette": ("resized-crop:min_area=0.35", "flip", JITTER),
}
EPOCHS = {"smallNORB": (50, 100), "CIFAR-10": (200, 350), "Imagenette": (200, 350)}
"""Epochs of pretraining and of finetuning."""
ROWS = {
    "best": "mcae/best/pretrain-{}",
    "best, plain pretraining": "mcae/pretrain/{}-large",
    "best, no pretraining": "",
}
VIT_ROWS = {"best, ViT": "mcae/best/pretrain-imagenette-vit", "best, ViT, no pretraining": ""}
"""A transformer, which has to learn what the ConvMixer is built with; AdamW for both parts."""

add_table(
    Table(
        "mcae",
        "best",
        "The plain network, trained better",
        {name: COLUMNS[name] for name in CROPS},
        {row: {} for row in (*ROWS, *VIT_ROWS, *LARGE, *LARGE.values())},
        sources=("table1",),
    )
)


def best_pretraining(column: str, row: str = "pretraining, best", **fields: Any) -> Recipe:
    first = pretraining(column, row=row, target="normalised", **fields)
    return replace(first, epochs=EPOCHS[column][0])


def hardened(recipe: Recipe, column: str, *more: str, cutmix: float = 0.5) -> Recipe:
    """more: augmentations after the column's own"""
    return replace(
        recipe,
        data=replace(recipe.data, augment=(*CROPS[column], *more), cutmix=cutmix),
        task=Classify("cross_entropy", smoothing=0.1),
        optimiser=OptimiserSpec("sgd", 0.1, 5e-4, decay_all=False, nesterov=True, ema=0.999),
    )


for column in CROPS:
    short = slug(column)
    add(f"best/pretrain-{short}", f"Pretraining of best on {column}.", best_pretraining(column))
    for row, before in ROWS.items():
        plain = finetuning("best", row, column, before.format(short))
        plain = replace(plain, epochs=EPOCHS[column][1])
        variant = row.removeprefix("best").removeprefix(", ").replace(" ", "-")
        name = "-".join(filter(None, (f"best/{short}", variant)))
        name = "best" if name == "best/imagenette" else name
        add(name, f"{column}, {row}.", hardened(plain, column))

first = best_pretraining("Imagenette", "pretraining, best, ViT", backbone="vit")
first = replace(
    first, epochs=300, optimiser=ADAMW, data=replace(first.data, augment=CROPS["Imagenette"])
)
add("best/pretrain-imagenette-vit", "Pretraining on Imagenette, ViT, with AdamW.", first)
for row, before in VIT_ROWS.items():
    made = hardened(finetuning("best", row, "Imagenette", before, backbone="vit"), "Imagenette")
    made = replace(made, optimiser=replace(ADAMW, ema=0.999))
    add(f"best/imagenette-vit{'' if before else '-no-pretraining'}", f"Imagenette, {row}.", made)
