"""Frames: angles from which an encoder may look at an image, of which the best explained is kept.

    view_f(x) = image(R_f x)           a pose X of the view stands in the image at R_f X

What is said of the view is then the same for every turn of the image, up to the grid of angles.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.functional import exact, warp


class Look(NamedTuple):
    """Images as they are seen from the frames that were chosen."""

    views: Tensor
    """[B,C,H,W]"""
    turns: Tensor | None = None
    """From a view to its image [B,2,3]; None: views are the images themselves."""
    scores: Tensor | None = None
    """How well an image is explained from each frame [B,F]."""

    def terms(self) -> dict[str, Tensor]:
        """What the bound has of frames: all are as likely, and the posterior is sure of one."""
        if self.scores is None:
            return {}
        chance = self.scores.new_tensor(1 / self.scores.shape[1])
        return {"frame": chance.log().expand(len(self.scores))}


def rotations(count: int, like: Tensor) -> Tensor:
    """Turns by even shares of a circle. -> [F,2,3]"""
    angle = torch.arange(count, device=like.device, dtype=like.dtype) * (2 * math.pi / count)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    return torch.stack([cos, -sin, zero, sin, cos, zero], -1).unflatten(-1, (2, 3))


def undone(turns: Tensor) -> Tensor:
    """The opposite rotations. [B,2,3] -> [B,2,3]"""
    return torch.cat([turns[..., :2].mT, turns[..., 2:]], -1)


def turned(images: Tensor, turns: Tensor) -> Tensor:
    """Images as they stand after these rotations. [B,C,H,W], [B,2,3] -> [B,C,H,W]"""
    with torch.autocast(images.device.type, enabled=False):  # places need float32
        images = exact(images)
        return warp(images, turns.to(images), (images.shape[2], images.shape[3]))


Score = Callable[[Tensor, Tensor, Tensor], Tensor]


def look(images: Tensor, count: int, score: Score, together: bool) -> Look:
    """The frame from which each image is explained best, chosen without a gradient; of one frame,
    the images themselves.

    score: images, their views and turns -> [B]; together: all frames in one batch, which is faster
    and takes more memory
    """
    if count == 1:
        return Look(images)
    with torch.no_grad():
        turns = rotations(count, images)
        if together:
            many, each = images.repeat_interleave(count, 0), turns.repeat(images.shape[0], 1, 1)
            scores = score(many, turned(many, undone(each)), each).unflatten(0, (-1, count))
        else:
            each = turns[:, None].expand(-1, images.shape[0], -1, -1)
            scores = torch.stack([score(images, turned(images, undone(t)), t) for t in each], 1)
        chosen = turns[scores.argmax(1)]
    return Look(turned(images, undone(chosen)), chosen, scores)
