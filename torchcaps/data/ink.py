"""Bounding boxes of the ink in images, and a test whether two sets have the same distribution.

Compares generated sets with original files: `torchcaps data compare affnist affnist-like:mnist`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.data.dataset import Split
from torchcaps.errors import TorchcapsError

INK_THRESHOLD = 32
"""Smallest gray level of ink; faint pixels depend on the interpolation at edges."""
SIGNIFICANCE = 0.001
"""Probability that two samples of one distribution differ by more than the limit."""


class Compared(NamedTuple):
    """Comparison of one measure of the boxes in two sets."""

    mean: float
    other: float
    distance: float
    """Kolmogorov-Smirnov statistic: largest difference of the cumulative distributions."""
    limit: float
    """Critical value of the distance at the significance level."""

    @property
    def alike(self) -> bool:
        return self.distance <= self.limit


def ink_boxes(split: Split) -> dict[str, Tensor]:
    """First row and column with ink, height, width and share of pixels with ink, each [N]."""
    ink = split.images.amax(1) >= INK_THRESHOLD
    if not bool(ink.flatten(1).any(1).all()):
        raise TorchcapsError("An image has no ink.")
    boxes = {}
    for name, size, lines in (("top", "height", ink.any(2)), ("left", "width", ink.any(1))):
        first = lines.float().argmax(1)
        last = lines.shape[1] - 1 - lines.flip(1).float().argmax(1)
        boxes[name], boxes[size] = first, last - first + 1
    boxes["share"] = ink.flatten(1).float().mean(1)
    return {name: values.double().cpu() for name, values in boxes.items()}


def distance(one: Tensor, other: Tensor) -> float:
    """Kolmogorov-Smirnov statistic of two samples."""
    values = torch.cat([one, other]).unique()
    cumulative = [
        torch.searchsorted(sample.sort().values, values, right=True) / len(sample)
        for sample in (one, other)
    ]
    return float((cumulative[0] - cumulative[1]).abs().max())


def compare_ink(one: Split, other: Split) -> dict[str, Compared]:
    """Compare each measure of the ink boxes in two sets."""
    if one.images.shape[1:] != other.images.shape[1:]:
        sizes = " and ".join("x".join(map(str, s.images.shape[1:])) for s in (one, other))
        raise TorchcapsError(f"Images of {sizes} cannot be compared: give sets of one image size.")
    first, second = ink_boxes(one), ink_boxes(other)
    count = len(one) * len(other) / (len(one) + len(other))
    limit = math.sqrt(-math.log(SIGNIFICANCE / 2) / (2 * count))
    return {
        name: Compared(
            float(values.mean()), float(second[name].mean()), distance(values, second[name]), limit
        )
        for name, values in first.items()
    }
