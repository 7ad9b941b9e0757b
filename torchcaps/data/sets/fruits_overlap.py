"""Two fruits on one image, one partly behind the other, composed of photographs of `fruits-views`.

Each photograph is once in front, before one of another fruit of the same split. The background of
the photographs is white, so a fruit is where its photograph is not.
"""

import math
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data.dataset import Dataset, Split
from torchcaps.data.registry import register
from torchcaps.data.sets.fruits_views import fruits_views
from torchcaps.errors import UsageError
from torchcaps.functional import counter_uniform

WHITE = 240
"""Pixels with all channels above it are background, but for highlights inside a fruit."""


@register(
    "fruits-overlap",
    "two fruits, one partly behind the other: fruits-overlap[:half|axis][,size=224][,overlap=0.5]"
    "[,classes=seen|unseen]",
)
def fruits_overlap(
    root: Path,
    test: str = "half",
    *,
    seed: int,
    size: int = 64,
    overlap: float = 0.5,
    classes: str = "all",
) -> Dataset:
    """test, classes: as in fruits-views

    overlap: how much nearer than a side the centers are, as a share of a side
    """
    if not 0 <= overlap < 1:
        raise UsageError(f"fruits-overlap: overlap={overlap}: give a number from 0, below 1.")
    side = round(size / (2 - overlap))
    single = fruits_views(root, test, seed=seed, size=str(side), classes=classes)
    splits = (single.train, single.val, single.test)
    train, val, tested = (
        _overlapping(split, single.num_classes, size, 3 * seed + number)
        for number, split in enumerate(splits)
    )
    name = f"fruits-overlap:{test}"
    return Dataset(name, train, val, tested, single.classes, single.note)


def _overlapping(split: Split, num_classes: int, size: int, seed: int) -> Split:
    """Each image of a split in front of one of another class. [N,3,S,S] -> [N,3,size,size]"""
    count = torch.bincount(split.labels, minlength=num_classes)
    first, members = count.cumsum(0) - count, split.labels.argsort(stable=True)
    u = counter_uniform(seed, torch.arange(len(split)), 3)
    other = (split.labels + 1 + (u[:, 0] * (num_classes - 1)).long()) % num_classes
    behind = members[first[other] + (u[:, 1] * count[other]).long()]
    side = split.images.shape[3]
    angle = 2 * math.pi * u[:, 2]
    apart = (size - side) / 2 * torch.stack([angle.sin(), angle.cos()], 1)
    images = torch.full((len(split), 3, size, size), 255, dtype=torch.uint8)
    for rows, sign in ((behind, -1), (torch.arange(len(split)), 1)):
        corners = ((size - side) / 2 + sign * apart).round().long().tolist()
        for image, row, (top, left) in zip(images, rows, corners, strict=True):
            place = image[:, top : top + side, left : left + side]
            photograph = split.images[row]
            place.copy_(torch.where(cut_out(photograph), photograph, place))
    return Split(images, torch.stack([split.labels, other], 1))


def cut_out(photograph: Tensor) -> Tensor:
    """Mask of the object before a white background. [3,H,W] uint8 -> [H,W] bool

    A pixel is the object's if it is not white, or has such pixels on all four sides.
    """
    dark = (photograph.amin(0) < WHITE).byte()
    inside = torch.ones_like(dark)
    for axis in (0, 1):
        inside &= dark.cummax(axis).values & dark.flip(axis).cummax(axis).values.flip(axis)
    return inside.bool()
