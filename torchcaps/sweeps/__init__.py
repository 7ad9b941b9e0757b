"""Sweeps: search over the fields of a recipe; each trial is a run like any other.

>>> sweep = torchcaps.sweep("demo/capsnet", over={"optimizer.lr": "log:1e-4..1e-1"}, trials=20)
>>> sweep.best.values, sweep.best.value, [run.accuracy for run in sweep.final]

Trials are compared on validation data and never look at the test split; the best one runs again
with other seeds, and only those runs are evaluated on the test split.
"""

from torchcaps.sweeps.driver import sweep
from torchcaps.sweeps.folder import Sweep, Trial
from torchcaps.sweeps.space import Range

__all__ = ["Range", "Sweep", "Trial", "sweep"]
