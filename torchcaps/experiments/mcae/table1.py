"""Table 1: six data sets, with and without pretraining, and what they are compared with.

`mcae/pretrain` and `mcae/finetune` are CIFAR-10's, for one's own data too:
`torchcaps train mcae/pretrain --data folder:photos,size=32`, then `mcae/finetune --from RUN`.
The table of the paper is lost from its text here; the values of its best row are in the rest of it.
Rows with large patches (8 at 64 px, 4 below) came first. What it is compared with sees the same
images, augmentation and epochs; optimisers, and SR-CapsNet's batch, are their own authors'.
"""

from dataclasses import replace
from typing import Any

from torchcaps.experiments.mcae.setting import ADAMW, SETTINGS, add, finetuning, pretraining, slug
from torchcaps.experiments.tables import Column, Table, add_table
from torchcaps.train.recipe import OptimiserSpec, Recipe
from torchcaps.train.tasks import Classify

PAPER = {
    "MNIST": 99.6, "Fashion": 95.0, "smallNORB": 95.0, "CIFAR-10": 92.8, "Imagenette": 82.1,
    "Imagewoof": 61.8,
}  # fmt: skip
COLUMNS = {name: Column((s.data,)) for name, s in SETTINGS.items()}
OTHERS = {
    "DR": "capsnet-resnet",
    "EM": "em-resnet",
    "VB": "em-resnet",
    "SR-CapsNet": "sr-capsnet",
    "ResNet-18": "resnet18-timm",
    "ResNet-18, small images": "resnet18",
    "MobileNetV3": "mobilenetv3",
    "ViT-S": "vit-small",
}
SHORTER = ("ResNet-18, small images", "MobileNetV3")
"""Rows that Imagenette has after 100 epochs too, which came first."""
LARGE = {row: f"{row}, large patches" for row in ("MCAE", "MCAE (no pretraining)")}
add_table(
    Table(
        "mcae",
        "table1",
        "With and without pretraining",
        COLUMNS,
        {"MCAE": PAPER, "MCAE (no pretraining)": {}}
        | {row: {} for row in (*LARGE.values(), *OTHERS)}
        | {f"{row}, 100 epochs": {} for row in SHORTER},
    )
)


def beside(table: str, row: str, column: str, data: str = "") -> Recipe:
    """Another network on the same images, trained as its own authors do."""
    model, fields = OTHERS[row], dict[str, Any]()
    if row == "VB":
        fields = {"routing": "vb"}
    elif row == "ViT-S":
        fields = SETTINGS[column].small
    made = finetuning(table, row, column, "", data, model, **fields)
    if row == "DR":
        return replace(made, task=Classify("margin"), optimiser=OptimiserSpec("adam", 1e-3))
    if row in ("EM", "VB"):
        spread = Classify("spread", margin=0.2)
        return replace(made, task=spread, optimiser=OptimiserSpec("adam", 1e-2))
    if row == "ViT-S":  # SGD at 0.1 hardly teaches it
        return replace(made, optimiser=ADAMW)
    return replace(made, batch_size=64) if row == "SR-CapsNet" else made


def short(row: str) -> str:
    """A row as part of a recipe's name."""
    return row.lower() if row in ("DR", "EM", "VB") else OTHERS[row]


for column, printed in PAPER.items():
    name, chosen = slug(column), SETTINGS[column]
    first = pretraining(column, **chosen.drawn)
    add(f"pretrain/{name}", f"Pretraining on {column}.", first, as_printed=True)
    large = f"Pretraining on {column}, large patches."
    coarse = pretraining(column, row="pretraining, large patches")
    add(f"pretrain/{name}-large", large, coarse, as_printed=True)
    for row, before, end in (
        ("MCAE", f"mcae/pretrain/{name}", ""),
        ("MCAE (no pretraining)", "", "-scratch"),
    ):
        claim = f"{column}, {row}" + (f": {printed} % in the paper." if before else ".")
        made = finetuning("table1", row, column, before, **chosen.small)
        add(f"table1/{name}{end}", claim, replace(made, choose="loss"), as_printed=True)
        before = before and f"{before}-large"
        made = finetuning("table1", LARGE[row], column, before)
        add(f"table1/{name}-large{end}", f"{column}, {LARGE[row]}.", made, as_printed=True)
    for row in OTHERS:
        made = beside("table1", row, column)
        add(f"table1/{name}-{short(row)}", f"{column}, {row} beside it.", made)

for row in SHORTER:
    made = replace(beside("table1", row, "Imagenette"), row=f"{row}, 100 epochs", epochs=100)
    add(f"table1/imagenette-{short(row)}-100", f"Imagenette, {made.row}.", made)

own = replace(pretraining("CIFAR-10"), paper="", table="", row="")
add("pretrain", "Pretraining on CIFAR-10, or on your images: --data.", own)
add(
    "finetune",
    "Finetuning on CIFAR-10 or your images, from a pretrained run: --from RUN.",
    replace(finetuning("", "", "CIFAR-10", "mcae/pretrain"), paper=""),
)
