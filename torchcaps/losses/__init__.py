"""Losses as functions of tensors; they know no model."""

from torchcaps.losses.classification import (
    binary_cross_entropy,
    cross_entropy,
    margin_loss,
    multi_hot,
    spread_loss,
)
from torchcaps.losses.reconstruction import reconstruction_loss

__all__ = [
    "binary_cross_entropy",
    "cross_entropy",
    "margin_loss",
    "multi_hot",
    "reconstruction_loss",
    "spread_loss",
]
