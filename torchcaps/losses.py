"""Losses on class scores, for one or several objects per image.

`weights` [B] are weights of the images, such as those of their classes.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def multi_hot(labels: Tensor, num_classes: int) -> Tensor:
    """Convert labels [B] or [B,M] (-1: no label) to [B,Y] with a one for every labeled class.

    >>> multi_hot(torch.tensor([2, 0]), 3)
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """
    labels = labels.reshape(len(labels), -1)
    present = F.one_hot(labels.clamp(min=0), num_classes) * (labels >= 0)[..., None]
    return present.amax(1).float()


def _mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    """The mean over images, weighted if there are weights. losses, weights [B] -> scalar"""
    if weights is None:
        return losses.mean()
    return (losses * weights).sum() / weights.sum().clamp(min=1e-12)


def margin_loss(
    lengths: Tensor,
    labels: Tensor,
    m_plus: float = 0.9,
    m_minus: float = 0.1,
    absent_weight: float = 0.5,
    weights: Tensor | None = None,
) -> Tensor:
    """Margin loss: lengths of present classes above m_plus, of absent classes below m_minus.

    lengths [B,Y] -> scalar

    >>> lengths = torch.tensor([[0.9, 0.1, 0.1]])
    >>> margin_loss(lengths, torch.tensor([0]))
    tensor(0.)
    """
    present = multi_hot(labels, lengths.shape[1])
    short = (m_plus - lengths).clamp(min=0).square()
    long = (lengths - m_minus).clamp(min=0).square()
    return _mean((present * short + absent_weight * (1 - present) * long).sum(1), weights)


def spread_loss(
    scores: Tensor, labels: Tensor, margin: float = 0.9, weights: Tensor | None = None
) -> Tensor:
    """Spread loss: the labeled class above every other by a margin (Hinton et al. 2018).

    scores [B,Y] -> scalar. With several labels per image, the lowest labeled score counts.

    >>> scores = torch.tensor([[0.95, 0.0, 0.0]])
    >>> spread_loss(scores, torch.tensor([0]))
    tensor(0.)
    """
    present = multi_hot(labels, scores.shape[1]) > 0
    lowest = scores.masked_fill(~present, float("inf")).amin(1, keepdim=True).clamp(max=1)
    short = (margin - (lowest - scores)).clamp(min=0).square()
    return _mean(short.masked_fill(present, 0).sum(1), weights)


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    smoothing: float = 0.0,
    pasted: Tensor | None = None,
    kept: Tensor | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """Softmax cross entropy; several labels of an image get equal weights.

    smoothing: weight of the uniform target. pasted, kept [B]: for CutMix, the label of the pasted
    rectangle and the weight of the image's own labels.

    >>> cross_entropy(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.6931)
    """

    def distribution(labels: Tensor) -> Tensor:
        target = multi_hot(labels, logits.shape[1])
        return target / target.sum(1, keepdim=True).clamp(min=1)

    target = distribution(labels)
    if pasted is not None and kept is not None:
        target = torch.lerp(distribution(pasted), target, kept[:, None])
    # an image without a label has a zero target and adds nothing to the loss
    target = torch.lerp(target, target.sum(1, keepdim=True) / logits.shape[1], smoothing)
    if weights is None:
        return F.cross_entropy(logits, target)
    return _mean(F.cross_entropy(logits, target, reduction="none"), weights)


def binary_cross_entropy(
    scores: Tensor, labels: Tensor, *, probabilities: bool, weights: Tensor | None = None
) -> Tensor:
    """Binary cross entropy, summed over classes. scores [B,Y]: logits, or probabilities.

    >>> binary_cross_entropy(torch.zeros(1, 2), torch.tensor([0]), probabilities=False)
    tensor(1.3863)
    """
    target = multi_hot(labels, scores.shape[1])
    if not probabilities:
        losses = F.binary_cross_entropy_with_logits(scores, target, reduction="none")
        return _mean(losses.sum(1), weights)
    # F.binary_cross_entropy raises under autocast
    scores = scores.float()
    safe = scores.clamp(1e-6, 1 - 1e-6)
    above = (scores - 1).clamp(min=0)  # unsquashed lengths above one still need a gradient
    losses = -target * safe.log() + (1 - target) * (above - torch.log1p(-safe))
    return _mean(losses.sum(1), weights)


def equivariance_loss(poses: Tensor, angles: Tensor, labels: Tensor) -> Tensor:
    """One minus the cosine of two poses of one class, each rotated back by the angle of its image.

    poses [B,E] with an even E, whose pairs of entries rotate; angles [B] in radians; labels [B] ->
    the mean over all pairs of images of one class

    >>> poses = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> equivariance_loss(poses, torch.tensor([0.0, torch.pi / 2]), torch.tensor([5, 5]))
    tensor(0.)
    """
    x, y = poses.float().unflatten(1, (-1, 2)).unbind(2)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    upright = F.normalize(torch.cat([x * cos + y * sin, y * cos - x * sin], 1), dim=1)
    pairs = (labels[:, None] == labels).triu(1)
    away = 1 - upright @ upright.mT
    return (away * pairs).sum() / pairs.sum().clamp(min=1)


def reconstruction_loss(decoded: Tensor, target: Tensor, present: Tensor | None = None) -> Tensor:
    """Sum of squared errors over pixels, mean over the batch.

    decoded, target [B,C,H,W]; or [B,M,C,H,W] with present [B,M]: one reconstruction for each
    labeled object, absent objects left out

    >>> reconstruction_loss(torch.ones(2, 1, 3, 3), torch.zeros(2, 1, 3, 3))
    tensor(9.)
    """
    error = (decoded - target).square().flatten(-3).sum(-1)
    if present is not None:
        error = error * present
    return error.sum() / len(decoded)
