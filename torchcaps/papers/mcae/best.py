"""`mcae/best`: the same network and inference with better training. Not in the paper.

Pretraining predicts pixels normalized within their patch and is longer on photographs. Finetuning
uses stronger crops of photographs, CutMix, more weight decay and averaged weights. smallNORB's
augmentation was chosen on held-out toys. Patches are small; rows with "large patches" have twice
their side, "deep" rows twice the blocks and residual capsule layers.
"""

from dataclasses import replace
from typing import Any

from torchcaps.papers.mcae.setting import (
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
from torchcaps.papers.mcae.table1 import COLUMNS, LARGE
from torchcaps.papers.tables import Table, add_table
from torchcaps.training.recipe import OptimizerSpec, Recipe
from torchcaps.training.tasks import Classify

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
"""Epochs of pretraining and finetuning, if not 200 and 350."""
SHORTER = EPOCHS | {"Fashion": (50, 150), "CIFAR-10": (50, 150)}
"""Epochs with small patches, whose steps take about three times as long."""
ROWS = {"best": "mcae/best/pretrain-{}", "best, no pretraining": ""}
COARSE = {f"{row}, large patches": before and f"{before}-large" for row, before in ROWS.items()}
DEEP = {"best, deep": "mcae/best/pretrain-{}-deep", "best, deep, no pretraining": ""}
"""With eight blocks instead of four and residual capsule layers, for datasets that the plain
network underfits."""
UNFIT = ("Fashion", "CIFAR-10")
"""Datasets on which the plain network is below the paper."""
MEASURED = ("smallNORB", "CIFAR-10", "Imagenette")
"""Datasets with rows for large patches."""
VIT_ROWS = {"best, ViT": "mcae/best/pretrain-imagenette-vit", "best, ViT, no pretraining": ""}
"""A transformer, without the ConvMixer's inductive bias; AdamW for pretraining and finetuning."""

add_table(
    Table(
        "mcae",
        "best",
        "Masked capsule autoencoder with better training",
        {name: COLUMNS[name] for name in CROPS},
        {row: {} for row in (*ROWS, *DEEP, *COARSE, *VIT_ROWS, *LARGE, *LARGE.values())},
        sources=("table1",),
    )
)


def best_pretraining(column: str, row: str = "pretraining, best", **fields: Any) -> Recipe:
    first = pretraining(column, row=row, target="normalized", **fields)
    return replace(first, epochs=_epochs(column, fields)[0])


def _epochs(column: str, fields: dict[str, Any]) -> tuple[int, int]:
    return (SHORTER if "patch_size" in fields else EPOCHS).get(column, (200, 350))


def deeper(column: str) -> dict[str, Any]:
    """Model fields of a deep row: small patches, twice the blocks, residual capsule layers."""
    return {**SETTINGS[column].small, "depth": 8, "residual": True}


def hardened(recipe: Recipe, column: str, *more: str, cutmix: float = 0.5) -> Recipe:
    """Use the column's stronger augmentation, label smoothing, and SGD with averaged weights.

    more: augmentations after those of the column
    """
    return replace(
        recipe,
        data=replace(recipe.data, augment=(*CROPS[column], *more), cutmix=cutmix),
        task=Classify(loss="cross_entropy", smoothing=0.1),
        optimizer=OptimizerSpec(
            kind="sgd", lr=0.1, weight_decay=5e-4, decay_all=False, nesterov=True, ema=0.999
        ),
    )


def best_finetuning(column: str, row: str, before: str, **fields: Any) -> Recipe:
    plain = finetuning("best", row, column, before, **fields)
    plain = replace(plain, epochs=_epochs(column, fields)[1])
    return hardened(plain, column, cutmix=0.0 if column == "MNIST" else 0.5)


def add_rows(
    column: str, rows: dict[str, str], kind: str, end: str, claim: str, **fields: Any
) -> None:
    """Add a pretraining and the rows that start from it, or from random weights."""
    short = slug(column)
    shared = {"decoder_shared": True} if fields else {}  # as with all small patches
    recipe = best_pretraining(column, f"pretraining, best{kind}", **shared, **fields)
    add(f"best/pretrain-{short}{end}", f"Pretraining of best on {column}{claim}.", recipe)
    for row, before in rows.items():
        name = f"best/{short}{end}" + ("" if before else "-no-pretraining")
        name = "best" if name == "best/imagenette" else name
        recipe = best_finetuning(column, row, before.format(short), **fields)
        add(name, f"{column}, {row}.", recipe)


for column in CROPS:
    add_rows(column, ROWS, "", "", "", **SETTINGS[column].small)
for column in UNFIT:
    add_rows(column, DEEP, ", deep", "-deep", ", eight blocks", **deeper(column))
for column in MEASURED:
    add_rows(column, COARSE, ", large patches", "-large", ", large patches")

first = best_pretraining("Imagenette", "pretraining, best, ViT", backbone="vit")
first = replace(
    first, epochs=300, optimizer=ADAMW, data=replace(first.data, augment=CROPS["Imagenette"])
)
add("best/pretrain-imagenette-vit", "Pretraining on Imagenette, ViT, with AdamW.", first)
for row, before in VIT_ROWS.items():
    recipe = hardened(finetuning("best", row, "Imagenette", before, backbone="vit"), "Imagenette")
    recipe = replace(recipe, optimizer=replace(ADAMW, ema=0.999))
    add(f"best/imagenette-vit{'' if before else '-no-pretraining'}", f"Imagenette, {row}.", recipe)
