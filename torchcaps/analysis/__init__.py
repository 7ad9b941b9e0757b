"""Looking inside: functions of a model and data that return arrays, and drawings of those arrays.

Numbers by name are in `measures`, pictures by name in `views`; importing this package knows all.
"""

from torchcaps.analysis import (
    angles,
    equivariance,
    evidence,
    free_form,
    masked,
    parts,
    presence,
    ranks,
    segments,
)
from torchcaps.analysis.attacks import (
    accuracy_under_attack,
    attacked,
    detected,
    draw_accuracy_under_attack,
)
from torchcaps.analysis.calibration import calibration_error, draw_reliability, reliability
from torchcaps.analysis.curves import draw_curves
from torchcaps.analysis.drawing import draw_traversal, reconstructions, traverse
from torchcaps.analysis.measures import measure_of, prepare, register_measure
from torchcaps.analysis.mistakes import by_class, worst_mistakes
from torchcaps.analysis.outliers import outlier_auroc, strangeness
from torchcaps.analysis.probing import representation
from torchcaps.analysis.robustness import accuracy_under, draw_accuracy_under
from torchcaps.analysis.routing import draw_coupling, routing_map
from torchcaps.analysis.units import compactness, draw_compactness
from torchcaps.analysis.views import get_view, register_view

__all__ = [
    "accuracy_under",
    "accuracy_under_attack",
    "angles",
    "attacked",
    "by_class",
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
    "equivariance",
    "evidence",
    "get_view",
    "free_form",
    "masked",
    "measure_of",
    "outlier_auroc",
    "prepare",
    "parts",
    "presence",
    "ranks",
    "reconstructions",
    "register_measure",
    "register_view",
    "reliability",
    "representation",
    "routing_map",
    "segments",
    "strangeness",
    "traverse",
    "worst_mistakes",
]
