"""Sparse Unsupervised Capsules Generalize Better (Rawlinson, Ahmed, Kowadlo 2018)."""

from torchcaps.experiments.sparse import best, depth, table1

__all__ = ["best", "depth", "table1"]
