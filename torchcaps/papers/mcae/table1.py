"""Table 1: six datasets, with and without pretraining, and baselines.

`mcae/pretrain` and `mcae/finetune` use CIFAR-10, or your own data:
`torchcaps train mcae/pretrain --data folder:photos,size=32`, then `mcae/finetune --from RUN`.
The paper's table is missing from our copy of its text; the values of its best row are elsewhere in
the text. Rows with large patches (8 at 64 px, 4 below) came first. Baselines see the same images,
augmentation and epochs; optimizers, and SR-CapsNet's batch size, are those of their authors.
ProtoCaps has no row: neither its numbers nor its code could be found.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torchcaps.papers.mcae.setting import ADAMW, SETTINGS, add, finetuning, pretraining, slug
from torchcaps.papers.tables import Column, Table, add_table
from torchcaps.training.recipe import OptimizerSpec, Recipe
from torchcaps.training.tasks import Classify

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
    "ResNet20-SR": "resnet20",
    "ResNet-18": "resnet18-timm",
    "ResNet-18, small images": "resnet18",
    "MobileNetV3": "mobilenetv3",
    "ViT-S": "vit-small",
}
OWN = {
    "DR": {"CIFAR-10": 92.14},
    "EM": {"CIFAR-10": 89.75},
    "VB": {"smallNORB": 98.7},
    "SR-CapsNet": {"CIFAR-10": 92.14},
    "ResNet20-SR": {"CIFAR-10": 92.06},
}
"""Values of the papers of self-routing and variational Bayes routing, which have other
augmentation."""
SHORTER = ("ResNet-18, small images", "MobileNetV3")
"""Rows that also have Imagenette results after 100 epochs, our first schedule."""
LARGE = {row: f"{row}, large patches" for row in ("MCAE", "MCAE (no pretraining)")}
add_table(
    Table(
        "mcae",
        "table1",
        "With and without pretraining",
        COLUMNS,
        {"MCAE": PAPER, "MCAE (no pretraining)": {}}
        | {row: OWN.get(row, {}) for row in (*LARGE.values(), *OTHERS)}
        | {f"{row}, 100 epochs": {} for row in SHORTER},
    )
)


def own_rows(table: str, name: str, column: str, data: str = "") -> Iterator[tuple[str, Recipe]]:
    """Recipes of MCAE with and without pretraining, on small and on large patches, each with the
    end of its name.
    """
    for row, before, end in (
        ("MCAE", f"mcae/pretrain/{name}", ""),
        ("MCAE (no pretraining)", "", "-scratch"),
    ):
        recipe = finetuning(table, row, column, before, data, **SETTINGS[column].small)
        yield end, replace(recipe, choose="loss")
        before = before and f"{before}-large"
        yield f"-large{end}", finetuning(table, LARGE[row], column, before, data)


def beside(table: str, row: str, column: str, data: str = "") -> Recipe:
    """A baseline on the same images, trained as by its authors."""
    model, fields = OTHERS[row], dict[str, Any]()
    if row == "VB":
        fields = {"routing": "vb"}
    elif row == "ViT-S":
        fields = SETTINGS[column].small
    recipe = finetuning(table, row, column, "", data, model, **fields)
    if row == "DR":
        return replace(
            recipe, task=Classify(loss="margin"), optimizer=OptimizerSpec(kind="adam", lr=1e-3)
        )
    if row in ("EM", "VB"):
        spread = Classify(loss="spread", margin=0.2)
        return replace(recipe, task=spread, optimizer=OptimizerSpec(kind="adam", lr=1e-2))
    if row == "ViT-S":  # it hardly learns with SGD at 0.1
        return replace(recipe, optimizer=ADAMW)
    return replace(recipe, batch_size=64) if row == "SR-CapsNet" else recipe


def short(row: str) -> str:
    """Name of a row as part of a recipe's name."""
    return row.lower() if row in ("DR", "EM", "VB") else OTHERS[row]


for column, printed in PAPER.items():
    name = slug(column)
    first = pretraining(column, **SETTINGS[column].standardized)
    add(f"pretrain/{name}", f"Pretraining on {column}.", first, as_printed=True)
    claim = f"Pretraining on {column}, large patches."
    coarse = pretraining(column, row="pretraining, large patches")
    add(f"pretrain/{name}-large", claim, coarse, as_printed=True)
    for end, recipe in own_rows("table1", name, column):
        claim = f"{column}, {recipe.row}" + (f": {printed} % in the paper." if not end else ".")
        add(f"table1/{name}{end}", claim, recipe, as_printed=True)
    for row in OTHERS:
        recipe = beside("table1", row, column)
        add(f"table1/{name}-{short(row)}", f"{column}, baseline {row}.", recipe)

for row in SHORTER:
    recipe = replace(beside("table1", row, "Imagenette"), row=f"{row}, 100 epochs", epochs=100)
    add(f"table1/imagenette-{short(row)}-100", f"Imagenette, {recipe.row}.", recipe)

general = replace(pretraining("CIFAR-10"), paper="", table="", row="")
add("pretrain", "Pretraining on CIFAR-10, or on your images: --data.", general)
add(
    "finetune",
    "Finetuning on CIFAR-10 or your images, from a pretrained run: --from RUN.",
    replace(finetuning("", "", "CIFAR-10", "mcae/pretrain"), paper=""),
)
