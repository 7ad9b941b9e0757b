"""Simple learners on frozen features: fit, predict, score."""

from torchcaps.probes.knn import KNN
from torchcaps.probes.linear import Linear

__all__ = ["KNN", "Linear"]
