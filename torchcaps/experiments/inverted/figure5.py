"""Figure 5: DiverseMultiMNIST, one digit or two overlapping ones; all right and no other.

The paper trains on 21 million images, ours on a twentieth of them (20 partners of each of 54,000
digits, seen once), so what is beside ours has seen more.
"""

from torchcaps.experiments.inverted.setting import add
from torchcaps.experiments.tables import Column, Table, add_table
from torchcaps.models.registry import model_config
from torchcaps.train.recipe import (
    DataSpec,
    HardwareSpec,
    OptimiserSpec,
    Recipe,
    ScheduleSpec,
)
from torchcaps.train.tasks import Classify

DATA = "diverse-multimnist:mnist,copies=20"
ROWS = {
    "inverted, vectors": ("inverted-multi", 85.74),
    "inverted, matrices": ("inverted-multi-matrix", 80.59),
    "dynamic, vectors": ("dynamic-multi", 83.39),
    "CNN, pooling": ("cnn-multi", 79.81),
    "CNN, fully connected": ("cnn-multi-fc", 84.84),
}
add_table(
    Table(
        "inverted",
        "figure5",
        "DiverseMultiMNIST: every digit found and no other",
        {"exact": Column((DATA,), "exact_match")},
        {row: {"exact": value} for row, (_, value) in ROWS.items()},
    )
)
for row, (model, value) in ROWS.items():
    made = Recipe(
        paper="inverted",
        table="figure5",
        row=row,
        epochs=1,
        batch_size=128,
        data=DataSpec(DATA),
        model=model_config(model),
        task=Classify("binary_cross_entropy"),
        optimiser=OptimiserSpec("sgd", 0.1, 5e-4),
        schedule=ScheduleSpec("one_cycle"),
        hardware=HardwareSpec(precision="bf16", compile="auto"),
    )
    add(f"figure5/{model}", f"{row}: {value} % in the paper, after 21M images.", made)
