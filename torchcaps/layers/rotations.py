"""Rotated views (frames) of an image, of which a model keeps the one that it explains best.

    view_f(x) = image(R_f x)           a pose X of the view is the pose R_f X in the image

The result is invariant to rotations of the image, up to the grid of angles.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.functional import exact, warp


class Look(NamedTuple):
    """Images in the frames that `look` has chosen."""

    views: Tensor
    """[B,C,H,W]"""
    turns: Tensor | None = None
    """Rotation from a view to its image [B,2,3]; None: the views are the images."""
    scores: Tensor | None = None
    """Score of each frame [B,F]; the largest is chosen."""

    def terms(self) -> dict[str, Tensor]:
        """Frame term of the evidence bound: a uniform prior and a one-hot posterior."""
        if self.scores is None:
            return {}
        prior = self.scores.new_tensor(1 / self.scores.shape[1])
        return {"frame": prior.log().expand(len(self.scores))}


def rotations(count: int, like: Tensor) -> Tensor:
    """Rotations by equal steps around the circle. -> [F,2,3]"""
    angle = torch.arange(count, device=like.device, dtype=like.dtype) * (2 * math.pi / count)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    return torch.stack([cos, -sin, zero, sin, cos, zero], -1).unflatten(-1, (2, 3))


def inverse(turns: Tensor) -> Tensor:
    """Inverse rotations. [B,2,3] -> [B,2,3]"""
    return torch.cat([turns[..., :2].mT, turns[..., 2:]], -1)


def rotate(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate images. [B,C,H,W], [B,2,3] -> [B,C,H,W]"""
    with torch.autocast(images.device.type, enabled=False):  # coordinates need float32
        images = exact(images)
        return warp(images, turns.to(images), (images.shape[2], images.shape[3]))


Score = Callable[[Tensor, Tensor, Tensor], Tensor]


def look(images: Tensor, count: int, score: Score, together: bool) -> Look:
    """Choose the frame with the best score for each image, without gradients; count=1: the images.

    score: images, their views and rotations -> [B]; together: all frames in one batch, which is
    faster and needs more memory
    """
    if count == 1:
        return Look(images)
    with torch.no_grad():
        turns = rotations(count, images)
        if together:
            copies = images.repeat_interleave(count, 0)
            batch = turns.repeat(images.shape[0], 1, 1)
            scores = score(copies, rotate(copies, inverse(batch)), batch).unflatten(0, (-1, count))
        else:
            batches = turns[:, None].expand(-1, images.shape[0], -1, -1)
            scores = torch.stack([score(images, rotate(images, inverse(t)), t) for t in batches], 1)
        best = turns[scores.argmax(1)]
    return Look(rotate(images, inverse(best)), best, scores)
