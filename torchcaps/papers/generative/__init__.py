"""Capsule Networks: A Generative Probabilistic Perspective (Smith and others 2020)."""

from torchcaps.papers.generative import best, constellations, figure4, posterior, table1
