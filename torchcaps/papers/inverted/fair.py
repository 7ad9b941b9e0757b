"""Table 1 on CIFAR-10 with the same images, augmentation and epochs for every row.

In Table 1 the other methods had a third of inverted attention's epochs, and random erasing that was
tuned for it. Here all rows have 40 epochs (few, because EM is slow) with crops and flips, the
paper's augmentation. Loss and optimizer are those of each method's authors: margin loss and Adam
for dynamic routing, spread loss and Adam for EM, cross entropy and SGD for inverted attention and
the CNNs.
"""

from typing import Any

from torchcaps.papers.inverted import table1
from torchcaps.papers.inverted.setting import AUGMENT, add, on_cifar
from torchcaps.papers.tables import Table, add_table

OWN: dict[str, dict[str, Any]] = {
    "dynamic": {k: table1.DR[k] for k in ("task", "optimizer")},
    "EM": {k: table1.EM[k] for k in ("task", "optimizer")},
}
ROWS = {
    "dynamic, simple": ("capsnet", table1.BARE),
    "EM, simple": ("em-simple", {}),
    "inverted, simple": ("inverted-simple", {}),
    "dynamic, ResNet": ("capsnet-resnet-256", {}),
    "EM, ResNet": ("em-resnet", {}),
    "inverted, ResNet": ("inverted-resnet", {}),
    "CNN": ("cnn", {}),
    "ResNet-18": ("resnet18", {}),
}
add_table(
    Table(
        "inverted",
        "fair",
        "CIFAR-10, equal images, augmentation and epochs",
        {"CIFAR-10": table1.COLUMNS["CIFAR-10"]},
        {row: {"CIFAR-10": table1.PAPER[row][0]} for row in ROWS},
    )
)
for row, (model, fields) in ROWS.items():
    options = {**OWN.get(row.split(",")[0], {}), **fields}
    names = {"capsnet": "dynamic-simple", "capsnet-resnet-256": "dynamic-resnet"}
    add(
        f"fair/{names.get(model, model)}",
        f"{row}, 40 epochs with crops and flips, as for all rows.",
        on_cifar("fair", row, model, augment=AUGMENT, epochs=40, **options),
    )
