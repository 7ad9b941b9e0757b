"""`robustness/best`: a capsule network of ConvNet-Modern's size under ConvNet-Modern's training.

Trained on translations alone; no affine map is ever applied to a training image from outside. The
views are inside the model: those of `best` stray at random while it learns, and stand still
afterwards; those of the other rows are the same in training and in testing. Ours, not the paper's.
"""

from dataclasses import replace
from typing import Any

from torchcaps.experiments.robustness.setting import SOFTMAX, TODAY, add, on_affnist, slug
from torchcaps.experiments.robustness.table1 import COLUMNS
from torchcaps.experiments.tables import Table, add_table

LIGHT: dict[str, Any] = {
    "channels": (32, 64, 128, 128, 256, 256, 240),
    "strides": (1, 2, 1, 1, 2, 1, 1),
    "rotations": (-24.0, -12.0, 12.0, 24.0),
}
"""A trunk of ConvNet-Modern's size and five sixths of its work, and five views."""
WANDER = {"wander": (8.0, 0.15, 0.15)}
"""Between two rotations, and most of what affNIST does to sizes and shears."""
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "best": ("view-capsnet", WANDER),
    "maximum in place of capsules, wandering views": ("convnet-modern", LIGHT | WANDER),
    "views that stand still": ("view-capsnet", {}),
    "no routing": ("view-capsnet", {"num_iters": 1}),
    "three views": ("view-capsnet", {"rotations": (-20.0, 20.0)}),
    "one view": ("view-capsnet", {"rotations": ()}),
    "maximum in place of capsules": ("convnet-modern", LIGHT),
}

add_table(
    Table(
        "robustness",
        "best",
        "A capsule network of ConvNet-Modern's size",
        COLUMNS,
        {row: {} for row in (*ROWS, "ConvNet-Modern")},
        sources=("table1",),
    )
)

for row, (model, fields) in ROWS.items():
    made = replace(on_affnist("best", row, model, SOFTMAX, **fields), optimiser=TODAY)
    name = "best" if row == "best" else f"best/{slug(row)}"
    claim = (
        f"Five rotations and routing, {row}"
        if row != "best"
        else "View-CapsNet, whose views wander"
    )
    add(name, f"{claim}.", made)
