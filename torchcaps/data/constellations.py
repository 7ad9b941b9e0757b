"""Constellations: squares and triangles as sets of points, of which the truth is known.

A scene has up to two squares and a triangle, each turned, scaled and placed by itself, each there
with a chance of a half. It is kept as an image of 4x4 places in any order: channels x, y, and
whether there is a point. Labels [N,16] are the pattern of each point, -1 where there is none.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data.dataset import Batch, Dataset, Split
from torchcaps.data.registry import register
from torchcaps.errors import TorchcapsError
from torchcaps.functional import draws

SIDE = 4
SQUARE = ((-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0))
TRIANGLE = ((-1.0, 0.0), (1.0, -1.0), (1.0, 1.0))
PATTERNS = (SQUARE, TRIANGLE, SQUARE)
CLASSES = ("square", "triangle", "another square")


@dataclass(frozen=True)
class Scenes:
    """Scene n is the same whenever it is asked for."""

    seed: int
    degrees: float
    absent: float

    def drawn(self, number: Tensor) -> tuple[Tensor, Tensor]:
        """-> images [B,3,4,4] in 255 steps from 0 to 1, labels [B,16]"""
        places = SIDE * SIDE
        u = draws(self.seed, number, 5 * len(PATTERNS) + places + 1)
        order = u[:, -places - 1 : -1].argsort(1)
        here = u[:, : len(PATTERNS)] >= self.absent
        sure = (u[:, -1] * len(PATTERNS)).long()  # no scene is empty
        here = here | torch.nn.functional.one_hot(sure, len(PATTERNS)).bool()
        points = u.new_zeros(len(u), places, 3)
        labels = torch.full((len(u), places), -1, device=u.device)
        first = 0
        for number_of, pattern in enumerate(PATTERNS):
            size, turn, x, y = u[:, len(PATTERNS) + 4 * number_of :][:, :4].unbind(1)
            half = 0.04 + 0.12 * size
            angle = (2 * turn - 1) * math.radians(self.degrees)
            corners = u.new_tensor(pattern)
            spun = torch.stack(
                [
                    corners[:, 0] * angle.cos()[:, None] - corners[:, 1] * angle.sin()[:, None],
                    corners[:, 0] * angle.sin()[:, None] + corners[:, 1] * angle.cos()[:, None],
                ],
                -1,
            )
            reach = half * math.sqrt(2)
            centre = reach[:, None] + torch.stack([x, y], 1) * (1 - 2 * reach[:, None])
            last = first + len(pattern)
            there = here[:, number_of, None]
            points[:, first:last, :2] = (centre[:, None] + half[:, None, None] * spun) * there[
                ..., None
            ]
            points[:, first:last, 2] = there.to(points)
            labels[:, first:last] = torch.where(there, number_of, -1)
            first = last
        points = points.gather(1, order[..., None].expand(-1, -1, 3))
        images = points.transpose(1, 2).unflatten(2, (SIDE, SIDE))
        return (images * 255).round() / 255, labels.gather(1, order)

    def __call__(self, split: Split, rows: Tensor, number: Tensor) -> Batch:
        return Batch(*self.drawn(number))


@register("constellations", "squares and triangles as points: constellations[,degrees=90]")
def constellations(
    root: Path, *, seed: int, degrees: float = 90.0, absent: float = 0.5, count: int = 50_000
) -> Dataset:
    """degrees: how far patterns are turned; absent: the chance that one is not there."""
    if not 0 <= absent < 1 or count < 10 or not 0 <= degrees <= 180:
        raise TorchcapsError("constellations: absent from 0 to less than 1, degrees up to 180.")

    def split(place: int, size: int) -> Split:
        images, labels = Scenes(3 * seed + place, degrees, absent).drawn(torch.arange(size))
        return Split((images * 255).round().to(torch.uint8), labels)

    train, val, test = (
        split(0, count),
        split(1, max(10, count // 25)),
        split(2, max(10, count // 10)),
    )
    note = "drawn: two squares and a triangle at most"
    scenes = Scenes(3 * seed, degrees, absent)
    return Dataset("constellations", train, val, test, CLASSES, note, scenes)
