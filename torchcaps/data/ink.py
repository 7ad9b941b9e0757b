"""Where the ink of images lies: boxes around it, and whether two sets lie alike.

For drawn sets beside original files: `torchcaps data compare affnist affnist-like:mnist`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.data.dataset import Split
from torchcaps.errors import TorchcapsError

FAINT = 32
"""Grey levels below which a pixel counts as empty, since bilinear edges fade out differently."""
RARE = 0.001
"""How often two samples of one distribution differ by more than the limit."""


class Compared(NamedTuple):
    """One number of the boxes in two sets."""

    mean: float
    other: float
    distance: float
    """The largest difference of their cumulative shares (Kolmogorov and Smirnov)."""
    limit: float
    """What chance alone exceeds once in a thousand."""

    @property
    def alike(self) -> bool:
        return self.distance <= self.limit


def ink_boxes(split: Split) -> dict[str, Tensor]:
    """First row and column with ink, height, width and share of pixels with ink, each [N]."""
    there = split.images.amax(1) >= FAINT
    if not bool(there.flatten(1).any(1).all()):
        raise TorchcapsError("An image has no ink at all.")
    found = {}
    for name, size, lines in (("top", "height", there.any(2)), ("left", "width", there.any(1))):
        first = lines.float().argmax(1)
        last = lines.shape[1] - 1 - lines.flip(1).float().argmax(1)
        found[name], found[size] = first, last - first + 1
    found["share"] = there.flatten(1).float().mean(1)
    return {name: values.double().cpu() for name, values in found.items()}


def distance(one: Tensor, other: Tensor) -> float:
    """The largest difference of two samples' cumulative shares."""
    places = torch.cat([one, other]).unique()
    shares = [
        torch.searchsorted(sample.sort().values, places, right=True) / len(sample)
        for sample in (one, other)
    ]
    return float((shares[0] - shares[1]).abs().max())


def compare_ink(one: Split, other: Split) -> dict[str, Compared]:
    """Each number of the boxes in both sets, how far apart they are, and how far chance goes."""
    if one.images.shape[1:] != other.images.shape[1:]:
        sizes = " and ".join("x".join(map(str, s.images.shape[1:])) for s in (one, other))
        raise TorchcapsError(f"Images of {sizes} cannot be compared.")
    first, second = ink_boxes(one), ink_boxes(other)
    count = len(one) * len(other) / (len(one) + len(other))
    limit = math.sqrt(-math.log(RARE / 2) / (2 * count))
    return {
        name: Compared(
            float(values.mean()), float(second[name].mean()), distance(values, second[name]), limit
        )
        for name, values in first.items()
    }
