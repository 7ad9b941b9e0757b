"""Looking inside: functions that return arrays, and functions that draw those arrays."""

from torchcaps.analysis.attacks import (
    accuracy_under_attack,
    attacked,
    detected,
    draw_accuracy_under_attack,
)
from torchcaps.analysis.calibration import calibration_error, draw_reliability, reliability
from torchcaps.analysis.compactness import compactness, draw_compactness
from torchcaps.analysis.curves import draw_curves
from torchcaps.analysis.outliers import outlier_auroc, strangeness
from torchcaps.analysis.robustness import accuracy_under, draw_accuracy_under
from torchcaps.analysis.routing import draw_coupling, routing_map
from torchcaps.analysis.traverse import draw_traversal, reconstructions, traverse

__all__ = [
    "accuracy_under",
    "accuracy_under_attack",
    "attacked",
    "calibration_error",
    "compactness",
    "detected",
    "draw_accuracy_under",
    "draw_accuracy_under_attack",
    "draw_compactness",
    "draw_coupling",
    "draw_curves",
    "draw_reliability",
    "draw_traversal",
    "outlier_auroc",
    "reconstructions",
    "reliability",
    "routing_map",
    "strangeness",
    "traverse",
]
