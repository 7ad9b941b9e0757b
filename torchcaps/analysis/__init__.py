"""Looking inside: functions that return arrays, and functions that draw those arrays."""

from torchcaps.analysis.compactness import compactness, draw_compactness
from torchcaps.analysis.robustness import accuracy_under, draw_accuracy_under
from torchcaps.analysis.routing import draw_coupling, routing_map
from torchcaps.analysis.traverse import draw_traversal, reconstructions, traverse

__all__ = [
    "accuracy_under",
    "compactness",
    "draw_accuracy_under",
    "draw_compactness",
    "draw_coupling",
    "draw_traversal",
    "reconstructions",
    "routing_map",
    "traverse",
]
