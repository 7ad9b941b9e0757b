"""Capsule Networks: A Generative Probabilistic Perspective (Smith and others 2020)."""

from torchcaps.experiments.generative import best, constellations, figure4, posterior, table1

__all__ = ["best", "constellations", "figure4", "posterior", "table1"]
