"""Sparse Unsupervised Capsules Generalize Better (Rawlinson, Ahmed, Kowadlo 2018)."""

from torchcaps.papers.sparse import best, depth, elsewhere, table1
