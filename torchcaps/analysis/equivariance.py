"""Whether the pose of the first capsule follows the image: shifted by a pixel, turned by 5 degrees.

A linear map from the pose before to the pose after is fitted on half of the images and asked about
the other half: 1: the pose moves as one map says, 0: no better than the mean pose.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.analysis.measures import Measure, register_measure
from torchcaps.analysis.ranks import support_and_rank
from torchcaps.analysis.robustness import Factor, transformed
from torchcaps.data import Dataset, Split
from torchcaps.models import CapsuleModel

MOVES: dict[str, tuple[Factor, float]] = {
    "shift_x": ("shift_x", 1.0),
    "shift_y": ("shift_y", 1.0),
    "rotation": ("rotation", 5.0),
}


def linear_share(before: Tensor, after: Tensor, ridge: float = 1e-4) -> float:
    """The share of the variance of `after` that a linear map of `before` tells, on unseen rows."""
    half = len(before) // 2
    x = torch.cat([before, torch.ones_like(before[:, :1])], 1).double()
    y = after.double()
    gram = x[:half].T @ x[:half]
    gram += ridge * half * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    told = x[half:] @ torch.linalg.solve(gram, x[:half].T @ y[:half])
    rest, whole = y[half:] - told, y[half:] - y[:half].mean(0)
    return float(1 - rest.square().sum() / whole.square().sum().clamp(min=1e-12))


@torch.no_grad()
def equivariance(model: CapsuleModel, split: Split, factor: Factor, amount: float) -> float:
    """Over images whose first capsule stays first, each capsule by itself, averaged by images."""
    model.eval()
    parts = []
    for batch in split.batches(500):
        outputs = [
            model.encode(images, coupling=True)
            for images in (batch.images, transformed(batch.images, factor, amount))
        ]
        first = [support_and_rank(output)[1].argmin(1) for output in outputs]
        row = torch.arange(len(batch), device=first[0].device)
        poses = [o.capsules[row, first[0]] for o in outputs if o.capsules is not None]
        stays = first[0] == first[1]
        parts.append((first[0][stays], poses[0][stays].float(), poses[1][stays].float()))
    which, before, after = (torch.cat(t) for t in zip(*parts, strict=True))
    total = told = 0.0
    for capsule in which.unique():
        rows = which == capsule
        count = int(rows.sum())
        if count >= 4 * before.shape[1]:
            told += count * linear_share(before[rows], after[rows])
            total += count
    return told / total if total else float("nan")


@register_measure("equivariance", [f"equivariance_{name}" for name in MOVES])
@dataclass
class Equivariance(Measure):
    """Whether the first capsule's pose moves linearly when the image is shifted or turned."""

    needs = ()

    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        return {
            f"equivariance_{name}": equivariance(model, split, *move)
            for name, move in MOVES.items()
        }
