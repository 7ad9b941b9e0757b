"""Figure 5: DiverseMultiMNIST, exact match of one digit or two overlapping digits.

The paper trains on 21 million images; our recipes use a quarter or a twentieth of that (100 or 20
partners of each of 54,000 digits, seen once). The text does not say how the network with matrices
grows to 42M parameters; ours has 64 types of capsules for 16.
"""

from dataclasses import replace

from torchcaps.papers.inverted.setting import PRINTED, add, on_cifar
from torchcaps.papers.tables import Column, Table, add_table
from torchcaps.training.recipe import DataSpec
from torchcaps.training.tasks import Classify

SIZES = {"5.4M": 100, "1.08M": 20}
"""Training images, and the number of partners of each digit."""
ROWS = {
    "inverted, vectors": ("inverted-multi", 85.74),
    "inverted, matrices": ("inverted-multi-matrix", 80.59),
    "inverted, matrices, 42M": ("inverted-multi-matrix-42m", 91.17),
    "dynamic, vectors": ("dynamic-multi", 83.39),
    "CNN, pooling": ("cnn-multi", 79.81),
    "CNN, fully connected": ("cnn-multi-fc", 84.84),
}


def _data(copies: int) -> str:
    return f"diverse-multimnist:mnist,copies={copies}"


add_table(
    Table(
        "inverted",
        "figure5",
        "DiverseMultiMNIST, exact match",
        {size: Column((_data(n),), "exact_match") for size, n in SIZES.items()},
        {row: {"5.4M": value} for row, (_, value) in ROWS.items()},
    )
)
for row, (model, value) in ROWS.items():
    for size, copies in SIZES.items():
        task = Classify(loss="binary_cross_entropy")
        recipe = on_cifar("figure5", row, model, epochs=1, task=task, optimizer=PRINTED["sgd"])
        recipe = replace(recipe, batch_size=128, data=DataSpec(name=_data(copies)))
        end = "" if size == "5.4M" else "-1m"
        claim = f"{row} on {size} images: {value} % in the paper, after 21M."
        add(f"figure5/{model}{end}", claim, recipe)
