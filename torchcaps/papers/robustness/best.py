"""`robustness/best`: a capsule network with the size and training of ConvNet-Modern.

Trained on translations only, without affine augmentation. The views are part of the model: those of
`best` vary at random in training and are fixed in evaluation; those of the other rows are fixed in
both. Not in the paper.
"""

from dataclasses import replace
from typing import Any

from torchcaps.papers.robustness.setting import SOFTMAX, TODAY, add, on_affnist, slug
from torchcaps.papers.robustness.table1 import COLUMNS
from torchcaps.papers.tables import Table, add_table

LIGHT: dict[str, Any] = {
    "channels": (32, 64, 128, 128, 256, 256, 240),
    "strides": (1, 2, 1, 1, 2, 1, 1),
    "rotations": (-24.0, -12.0, 12.0, 24.0),
}
"""A backbone of ConvNet-Modern's size with five sixths of its operations, and five views."""
JITTER = {"jitter": (8.0, 0.15, 0.15)}
"""Random rotations up to the next view, and most of affNIST's range of scales and shears."""
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "best": ("view-capsnet", JITTER),
    "maximum in place of capsules, wandering views": ("convnet-modern", LIGHT | JITTER),
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
    recipe = replace(on_affnist("best", row, model, SOFTMAX, **fields), optimizer=TODAY)
    name = "best" if row == "best" else f"best/{slug(row)}"
    claim = "View-CapsNet with random views" if row == "best" else f"View-CapsNet ablation: {row}"
    add(name, f"{claim}.", recipe)
