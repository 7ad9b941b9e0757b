"""Sparse Unsupervised Capsules Generalize Better (Rawlinson, Ahmed, Kowadlo 2018)."""

from torchcaps.experiments.sparse import best, depth, elsewhere, table1

__all__ = ["best", "depth", "elsewhere", "table1"]
