"""`sparse/best`: sparse capsules on a crop that follows the ink. Not in the paper.

Trained on shifted MNIST without labels. A small saliency map locates the ink, the capsules see the
28x28 pixels around it, and the reconstruction is placed back there: a shift changes the frame and
not the capsules. `pixels in the frame` measures the part of the gain that is due to the frame.
"""

from typing import Any

from torchcaps.papers.sparse.setting import (
    COLUMNS,
    QUICK,
    add,
    probes,
    unsupervised,
)
from torchcaps.papers.sparse.table1 import PIXELS
from torchcaps.papers.tables import Table, add_table
from torchcaps.training.recipe import OptimizerSpec, ScheduleSpec

OPTIONS = {
    "optimizer": OptimizerSpec(kind="adamw", lr=1e-3, weight_decay=0.01, decay_all=False),
    "schedule": ScheduleSpec(kind="cosine", warmup=0.02),
}
FRAMED: dict[str, Any] = {"backbone": "norm", "frame": 28, "num_caps": (32,), "gamma": 24.8}
"""Twice the capsules, with gamma scaled so that six capsules are unmasked, as in the paper."""
ROWS = {
    "best": ("best", {}),
    "best, dense": ("best/dense", {"mask": "none"}),
    "best, no frame": ("best/no-frame", {"frame": 0}),
}

add_table(
    Table(
        "sparse",
        "best",
        "Sparse capsules on a crop around the ink",
        COLUMNS,
        {row: {} for row in (*ROWS, "pixels in the frame")},
        derived={"pixels in the frame": ("best", "pixels")},
    )
)
for row, (name, fields) in ROWS.items():
    extra = probes("pixels", PIXELS) if row == "best" else ()
    metrics = (*probes(), *extra, *QUICK)
    recipe = unsupervised("best", row, options=OPTIONS, metrics=metrics, **{**FRAMED, **fields})
    add(name, f"Sparse capsules on a crop around the ink: {row}.", recipe)
