"""Losses on class scores, for one object an image or several."""

import torch
from torch import Tensor
from torch.nn import functional as F


def multi_hot(labels: Tensor, num_classes: int) -> Tensor:
    """labels [B] or [B,M], -1 for none -> [B,Y] with a one for every labelled class"""
    labels = labels.reshape(len(labels), -1)
    present = F.one_hot(labels.clamp(min=0), num_classes) * (labels >= 0)[..., None]
    return present.amax(1).float()


def margin_loss(
    lengths: Tensor,
    labels: Tensor,
    m_plus: float = 0.9,
    m_minus: float = 0.1,
    absent_weight: float = 0.5,
) -> Tensor:
    """Lengths of present classes above 0.9, of absent ones below 0.1. lengths [B,Y] -> scalar"""
    present = multi_hot(labels, lengths.shape[1])
    short = (m_plus - lengths).clamp(min=0).square()
    long = (lengths - m_minus).clamp(min=0).square()
    return (present * short + absent_weight * (1 - present) * long).sum(1).mean()


def spread_loss(scores: Tensor, labels: Tensor, margin: float = 0.9) -> Tensor:
    """The labelled class above every other by a margin (Hinton et al. 2018). scores [B,Y] -> scalar

    With several labels an image, the lowest of theirs counts.
    """
    present = multi_hot(labels, scores.shape[1]) > 0
    lowest = scores.masked_fill(~present, float("inf")).amin(1, keepdim=True).clamp(max=1)
    short = (margin - (lowest - scores)).clamp(min=0).square()
    return short.masked_fill(present, 0).sum(1).mean()


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    smoothing: float = 0.0,
    pasted: Tensor | None = None,
    kept: Tensor | None = None,
) -> Tensor:
    """Softmax cross entropy; with several labels an image, each gets the same share.

    smoothing: the share of the target that goes to all classes alike. pasted, kept [B]: the label
    that came in with a rectangle of another image, and the share that the image's own labels keep.
    """

    def shares(labels: Tensor) -> Tensor:
        target = multi_hot(labels, logits.shape[1])
        return target / target.sum(1, keepdim=True).clamp(min=1)

    target = shares(labels)
    if pasted is not None and kept is not None:
        target = torch.lerp(shares(pasted), target, kept[:, None])
    # an image without a label has nothing to share out, and counts for nothing
    target = torch.lerp(target, target.sum(1, keepdim=True) / logits.shape[1], smoothing)
    return F.cross_entropy(logits, target)


def binary_cross_entropy(scores: Tensor, labels: Tensor, *, probabilities: bool) -> Tensor:
    """One yes or no a class, summed over classes. scores [B,Y]: logits, or probabilities."""
    target = multi_hot(labels, scores.shape[1])
    if not probabilities:
        return F.binary_cross_entropy_with_logits(scores, target, reduction="none").sum(1).mean()
    # written out: F.binary_cross_entropy is refused under autocast
    scores = scores.float()
    safe = scores.clamp(1e-6, 1 - 1e-6)
    above = (scores - 1).clamp(min=0)  # lengths that nothing squashed must still be pushed down
    each = -target * safe.log() + (1 - target) * (above - torch.log1p(-safe))
    return each.sum(1).mean()
