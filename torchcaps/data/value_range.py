"""The value range of 16-bit and float images: one scale for a whole data set.

8-bit images run from 0 to 255. Images with more bits are scaled so that the range LO..HI becomes
0..255, and clipped. The range is given (`range=LO..HI`), or follows from the training images:
integers: the smallest of 8, 10, 12, 14 and 16 bits that holds their largest value; floats: 0..1.
"""

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import NamedTuple

import numpy as np

from torchcaps.errors import TorchcapsError, UsageError

Range = tuple[float, float]
"""The values that become black and white."""
BITS = (8, 10, 12, 14, 16)
"""Depths of integer images."""
UNIT: Range = (0.0, 1.0)
"""The range of float images that need no other."""


class Values(NamedTuple):
    """The smallest and the largest value of images, and whether they are integers."""

    low: float
    high: float
    whole: bool

    @classmethod
    def of(cls, array: np.ndarray) -> "Values":
        return cls(float(array.min()), float(array.max()), array.dtype.kind != "f")


def as_range(value: str | Sequence[float]) -> Range:
    """'0..4095' or (0, 4095) -> (0.0, 4095.0)"""
    ends = value.split("..", 1) if isinstance(value, str) else value
    try:
        low, high = (float(end) for end in ends)
    except (TypeError, ValueError):
        low, high = 0.0, 0.0
    if not (isfinite(low) and isfinite(high) and low < high):
        raise UsageError(
            f"range={value}: give the values that become black and white, like 0..4095."
        )
    return low, high


def as_text(value_range: Range) -> str:
    """(0.0, 4095.0) -> '0..4095'"""
    return "..".join(f"{end:g}" if abs(end) < 1e6 else repr(end) for end in value_range)


def default_range(values: Iterable[Values], name: str, option: str = "range=LO..HI") -> Range:
    """The range of a data set whose training images have these values.

    name: what an error calls the data set; option: the option for a range that it suggests
    """
    values = list(values)
    low, high = min(v.low for v in values), max(v.high for v in values)
    whole = {v.whole for v in values}
    if whole == {False} and 0 <= low <= high <= 1:
        return UNIT
    bits = next((b for b in BITS if 0 <= low <= high < 2**b), 0)
    if whole == {True} and bits:
        return 0.0, 2.0**bits - 1
    kind = " and ".join({True: "integer", False: "float"}[w] for w in sorted(whole))
    raise TorchcapsError(
        f"{name}: {kind} images from {low:g} to {high:g}. Give uint8, float from 0 to 1, or the "
        f"values that become black and white: {option}."
    )


def full_range(values: Values, name: str) -> Range:
    """The range of an image that belongs to no data set: 16 bits, or 0..1."""
    if values.whole and 0 <= values.low <= values.high < 2**16:
        return 0.0, 2.0**16 - 1
    return default_range([values], name)


def exceeds(values: Values, value_range: Range) -> bool:
    """True if some values are clipped."""
    return values.low < value_range[0] or values.high > value_range[1]


def to_bytes(array: np.ndarray, value_range: Range) -> np.ndarray:
    """Scale values so that the range becomes 0..255, and clip. -> uint8"""
    low, high = value_range
    scaled = (np.asarray(array, np.float64) - low) / (high - low)
    return (scaled.clip(0, 1) * 255).round().astype(np.uint8)
