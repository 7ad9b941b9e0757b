"""Sparse unsupervised capsules: a few capsules reconstruct the image."""

from torchcaps.models.sparse import model
