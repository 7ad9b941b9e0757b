"""Reconstruction losses."""

from torch import Tensor


def reconstruction_loss(drawn: Tensor, target: Tensor, present: Tensor | None = None) -> Tensor:
    """Sum of squares over pixels, mean over the batch.

    drawn, target [B,C,H,W]; or [B,M,C,H,W] with present [B,M]: one drawing for each labelled
    object, those that are absent left out
    """
    error = (drawn - target).square().flatten(-3).sum(-1)
    if present is not None:
        error = error * present
    return error.sum() / len(drawn)
