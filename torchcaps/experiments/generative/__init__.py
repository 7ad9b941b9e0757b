"""Capsule Networks: A Generative Probabilistic Perspective (Smith and others 2020)."""

from torchcaps.experiments.generative import table1

__all__ = ["table1"]
