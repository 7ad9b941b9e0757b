"""`mcae/best`: the same network and the same inference, trained better. Ours, not the paper's.

Pretraining is on pixels normalised within their patch, and longer on photographs; finetuning crops
photographs harder, pastes rectangles of other images, decays more and averages weights. smallNORB's
augmentation was chosen on toys that training lacked. Patches are small ones; rows of "large
patches" have twice their side, "deep" ones twice the blocks, and layers of capsules that add up.
"""

from dataclasses import replace
from typing import Any

from torchcaps.experiments.mcae.setting import (
    ADAMW,
    CROP,
    JITTER,
    LIGHT,
    SETTINGS,
    add,
    finetuning,
    pretraining,
    slug,
)
from torchcaps.experiments.mcae.table1 import COLUMNS, LARGE
from torchcaps.experiments.tables import Table, add_table
from torchcaps.train.recipe import OptimiserSpec, Recipe
from torchcaps.train.tasks import Classify

PHOTOGRAPHS = ("resized-crop:min_area=0.35", "flip", JITTER)
CROPS = {
    "MNIST": (CROP,),
    "Fashion": ("crop:2", "flip"),
    "smallNORB": (LIGHT,),
    "CIFAR-10": ("crop:4", "flip"),
    "Imagenette": PHOTOGRAPHS,
    "Imagewoof": PHOTOGRAPHS,
}
EPOCHS = {"MNIST": (50, 100), "smallNORB": (50, 100)}
"""Epochs of pretraining and of finetuning, where they are not 200 and 350."""
SHORTER = EPOCHS | {"Fashion": (50, 150), "CIFAR-10": (50, 150)}
"""With small patches, whose steps take some three times as long."""
ROWS = {"best": "mcae/best/pretrain-{}", "best, no pretraining": ""}
COARSE = {f"{row}, large patches": before and f"{before}-large" for row, before in ROWS.items()}
DEEP = {"best, deep": "mcae/best/pretrain-{}-deep", "best, deep, no pretraining": ""}
"""With eight blocks in place of four and capsule layers that are added to the one below, for data
sets that the plain network does not fit."""
UNFIT = ("Fashion", "CIFAR-10")
"""Data sets on which the plain network stays below the paper."""
MEASURED = ("smallNORB", "CIFAR-10", "Imagenette")
"""Data sets that large patches were tried on."""
VIT_ROWS = {"best, ViT": "mcae/best/pretrain-imagenette-vit", "best, ViT, no pretraining": ""}
"""A transformer, which has to learn what the ConvMixer is built with; AdamW for both parts."""

add_table(
    Table(
        "mcae",
        "best",
        "The plain network, trained better",
        {name: COLUMNS[name] for name in CROPS},
        {row: {} for row in (*ROWS, *DEEP, *COARSE, *VIT_ROWS, *LARGE, *LARGE.values())},
        sources=("table1",),
    )
)


def best_pretraining(column: str, row: str = "pretraining, best", **fields: Any) -> Recipe:
    first = pretraining(column, row=row, target="normalised", **fields)
    return replace(first, epochs=_epochs(column, fields)[0])


def _epochs(column: str, fields: dict[str, Any]) -> tuple[int, int]:
    return (SHORTER if "patch_size" in fields else EPOCHS).get(column, (200, 350))


def deeper(column: str) -> dict[str, Any]:
    """The model of a deep row: small patches, twice the blocks, layers that add up."""
    return {**SETTINGS[column].small, "depth": 8, "residual": True}


def hardened(recipe: Recipe, column: str, *more: str, cutmix: float = 0.5) -> Recipe:
    """more: augmentations after the column's own"""
    return replace(
        recipe,
        data=replace(recipe.data, augment=(*CROPS[column], *more), cutmix=cutmix),
        task=Classify("cross_entropy", smoothing=0.1),
        optimiser=OptimiserSpec("sgd", 0.1, 5e-4, decay_all=False, nesterov=True, ema=0.999),
    )


def best_finetuning(column: str, row: str, before: str, **fields: Any) -> Recipe:
    plain = finetuning("best", row, column, before, **fields)
    plain = replace(plain, epochs=_epochs(column, fields)[1])
    return hardened(plain, column, cutmix=0.0 if column == "MNIST" else 0.5)


for column in CROPS:
    short = slug(column)
    fine = SETTINGS[column].small
    made = best_pretraining(column, decoder_shared=True, **fine)
    add(f"best/pretrain-{short}", f"Pretraining of best on {column}.", made)
    for row, before in ROWS.items():
        name = f"best/{short}" + ("" if before else "-no-pretraining")
        name = "best" if name == "best/imagenette" else name
        made = best_finetuning(column, row, before.format(short), **fine)
        add(name, f"{column}, {row}.", made)
for column in UNFIT:
    short = slug(column)
    deep = deeper(column)
    made = best_pretraining(column, "pretraining, best, deep", decoder_shared=True, **deep)
    add(f"best/pretrain-{short}-deep", f"Pretraining of best on {column}, eight blocks.", made)
    for row, before in DEEP.items():
        name = f"best/{short}-deep" + ("" if before else "-no-pretraining")
        add(name, f"{column}, {row}.", best_finetuning(column, row, before.format(short), **deep))
for column in MEASURED:
    short = slug(column)
    made = best_pretraining(column, "pretraining, best, large patches")
    add(f"best/pretrain-{short}-large", f"Pretraining of best on {column}, large patches.", made)
    for row, before in COARSE.items():
        name = f"best/{short}-large" + ("" if before else "-no-pretraining")
        add(name, f"{column}, {row}.", best_finetuning(column, row, before.format(short)))

first = best_pretraining("Imagenette", "pretraining, best, ViT", backbone="vit")
first = replace(
    first, epochs=300, optimiser=ADAMW, data=replace(first.data, augment=CROPS["Imagenette"])
)
add("best/pretrain-imagenette-vit", "Pretraining on Imagenette, ViT, with AdamW.", first)
for row, before in VIT_ROWS.items():
    made = hardened(finetuning("best", row, "Imagenette", before, backbone="vit"), "Imagenette")
    made = replace(made, optimiser=replace(ADAMW, ema=0.999))
    add(f"best/imagenette-vit{'' if before else '-no-pretraining'}", f"Imagenette, {row}.", made)
