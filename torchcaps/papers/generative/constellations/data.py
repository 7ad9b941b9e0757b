"""Constellations: squares and triangles as sets of points, with known ground truth.

A scene has up to two squares and a triangle, each with its own rotation, scale and position, and
each present with probability one half. It is stored as an image of 4x4 slots in random order, with
the channels x, y, and a mask of points. Labels [N,16] are the pattern of each point, -1: no point.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data.dataset import Batch, Dataset, Split
from torchcaps.data.registry import register
from torchcaps.errors import TorchcapsError
from torchcaps.functional import counter_uniform

SIDE = 4
SQUARE = ((-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0), (1.0, 1.0))
TRIANGLE = ((-1.0, 0.0), (1.0, -1.0), (1.0, 1.0))
PATTERNS = (SQUARE, TRIANGLE, SQUARE)
CLASSES = ("square", "triangle", "another square")


@dataclass(frozen=True)
class Scenes:
    """Generator of scenes; scene n depends on the seed and n alone."""

    seed: int
    degrees: float
    absent: float

    def sample(self, number: Tensor) -> tuple[Tensor, Tensor]:
        """Scenes of these numbers: images [B,3,4,4] in 255 steps from 0 to 1, labels [B,16]."""
        slots = SIDE * SIDE
        u = counter_uniform(self.seed, number, 5 * len(PATTERNS) + slots + 1)
        order = u[:, -slots - 1 : -1].argsort(1)
        present = u[:, : len(PATTERNS)] >= self.absent
        certain = (u[:, -1] * len(PATTERNS)).long()  # no scene is empty
        present = present | torch.nn.functional.one_hot(certain, len(PATTERNS)).bool()
        points = u.new_zeros(len(u), slots, 3)
        labels = torch.full((len(u), slots), -1, device=u.device)
        first = 0
        for index, pattern in enumerate(PATTERNS):
            size, rotation, x, y = u[:, len(PATTERNS) + 4 * index :][:, :4].unbind(1)
            half = 0.04 + 0.12 * size
            angle = (2 * rotation - 1) * math.radians(self.degrees)
            corners = u.new_tensor(pattern)
            rotated = torch.stack(
                [
                    corners[:, 0] * angle.cos()[:, None] - corners[:, 1] * angle.sin()[:, None],
                    corners[:, 0] * angle.sin()[:, None] + corners[:, 1] * angle.cos()[:, None],
                ],
                -1,
            )
            reach = half * math.sqrt(2)
            center = reach[:, None] + torch.stack([x, y], 1) * (1 - 2 * reach[:, None])
            last = first + len(pattern)
            mask = present[:, index, None]
            positions = center[:, None] + half[:, None, None] * rotated
            points[:, first:last, :2] = positions * mask[..., None]
            points[:, first:last, 2] = mask.to(points)
            labels[:, first:last] = torch.where(mask, index, -1)
            first = last
        points = points.gather(1, order[..., None].expand(-1, -1, 3))
        images = points.transpose(1, 2).unflatten(2, (SIDE, SIDE))
        return (images * 255).round() / 255, labels.gather(1, order)

    def __call__(self, split: Split, rows: Tensor, number: Tensor) -> Batch:
        return Batch(*self.sample(number))


@register("constellations", "squares and triangles as points: constellations[,degrees=90]")
def constellations(
    root: Path, *, seed: int, degrees: float = 90.0, absent: float = 0.5, count: int = 50_000
) -> Dataset:
    """degrees: maximum rotation of a pattern; absent: probability that a pattern is absent."""
    if not 0 <= absent < 1 or count < 10 or not 0 <= degrees <= 180:
        raise TorchcapsError(
            f"constellations: degrees={degrees:g}, absent={absent:g}, count={count} are out of "
            "range. Use 0 <= degrees <= 180, 0 <= absent < 1, count >= 10."
        )

    def split(index: int, size: int) -> Split:
        images, labels = Scenes(3 * seed + index, degrees, absent).sample(torch.arange(size))
        return Split((images * 255).round().to(torch.uint8), labels)

    train, val, test = (
        split(0, count),
        split(1, max(10, count // 25)),
        split(2, max(10, count // 10)),
    )
    note = "generated: at most two squares and a triangle"
    scenes = Scenes(3 * seed, degrees, absent)
    return Dataset("constellations", train, val, test, CLASSES, note, scenes)
