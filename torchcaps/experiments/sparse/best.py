"""`sparse/best`: capsules in a frame that follows the ink. Ours, not the paper's.

Trained on MNIST and its shifts alone, without labels. A small saliency map says where the ink is,
the capsules see the 28x28 around it, and the drawing is put back there: so a shift changes the
frame and not the capsules. `pixels in the frame` says how much of the gain is the frame's.
"""

from typing import Any

from torchcaps.experiments.sparse.setting import (
    COLUMNS,
    QUICK,
    add,
    probes,
    unsupervised,
)
from torchcaps.experiments.sparse.table1 import PIXELS
from torchcaps.experiments.tables import Table, add_table
from torchcaps.train.recipe import OptimiserSpec, ScheduleSpec

OPTIONS = {
    "optimiser": OptimiserSpec("adamw", 1e-3, 0.01, decay_all=False),
    "schedule": ScheduleSpec("cosine", warmup=0.02),
}
FRAMED: dict[str, Any] = {"stem": "norm", "frame": 28, "num_caps": (32,), "gamma": 24.8}
"""Twice the capsules at the paper's six that draw."""
ROWS = {
    "best": ("best", {}),
    "best, dense": ("best/dense", {"mask": "none"}),
    "best, no frame": ("best/no-frame", {"frame": 0}),
}

add_table(
    Table(
        "sparse",
        "best",
        "Capsules in a frame that follows the ink",
        COLUMNS,
        {row: {} for row in (*ROWS, "pixels in the frame")},
        derived={"pixels in the frame": ("best", "pixels")},
    )
)
for row, (name, fields) in ROWS.items():
    extra = probes("pixels", PIXELS) if row == "best" else ()
    measures = (*probes(), *extra, *QUICK)
    made = unsupervised("best", row, options=OPTIONS, measures=measures, **{**FRAMED, **fields})
    add(name, f"Sparse capsules that canonicalise where they look: {row}.", made)
