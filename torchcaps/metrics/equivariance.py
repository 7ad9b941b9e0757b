"""Linear equivariance of the first-ranked capsule's pose under small shifts and rotations.

A linear map from the pose before to the pose after the transformation is fitted on half of the
images and evaluated on the other half. 1: one linear map predicts the pose; 0: it is no better
than the mean pose.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcaps.data import Dataset, Split
from torchcaps.metrics.base import Metric, register_metric
from torchcaps.metrics.ranks import support_and_rank
from torchcaps.metrics.robustness import Factor, transformed

if TYPE_CHECKING:
    from torchcaps.models import Model


MOVES: dict[Factor, float] = {"shift_x": 1.0, "shift_y": 1.0, "rotation": 5.0}
"""Transformations by one pixel or by 5 degrees."""


def explained_variance(before: Tensor, after: Tensor, ridge: float = 1e-4) -> float:
    """Fraction of the variance of `after` that a linear map of `before` explains on unseen rows."""
    half = len(before) // 2
    x = torch.cat([before, torch.ones_like(before[:, :1])], 1).double()
    y = after.double()
    gram = x[:half].T @ x[:half]
    gram += ridge * half * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    predicted = x[half:] @ torch.linalg.solve(gram, x[:half].T @ y[:half])
    residual, total = y[half:] - predicted, y[half:] - y[:half].mean(0)
    return float(1 - residual.square().sum() / total.square().sum().clamp(min=1e-12))


@torch.no_grad()
def equivariance(model: "Model", split: Split, factor: Factor, amount: float) -> float:
    """Explained variance of the first-ranked capsule's pose, averaged over images.

    Images count where the same capsule is first before and after; each capsule has its own map.
    """
    model.eval()
    batches = []
    for batch in split.batches(500):
        outputs = [
            model.encode(images, coupling=True)
            for images in (batch.images, transformed(batch.images, factor, amount))
        ]
        first = [support_and_rank(output)[1].argmin(1) for output in outputs]
        row = torch.arange(len(batch), device=first[0].device)
        poses = [o.capsules[row, first[0]] for o in outputs if o.capsules is not None]
        same = first[0] == first[1]
        batches.append((first[0][same], poses[0][same].float(), poses[1][same].float()))
    capsules, before, after = (torch.cat(t) for t in zip(*batches, strict=True))
    total = explained = 0.0
    for capsule in capsules.unique():
        rows = capsules == capsule
        count = int(rows.sum())
        if count >= 4 * before.shape[1]:
            explained += count * explained_variance(before[rows], after[rows])
            total += count
    return explained / total if total else float("nan")


@register_metric("equivariance", [f"equivariance_{name}" for name in MOVES])
@dataclass
class Equivariance(Metric):
    """Linear equivariance of the first-ranked capsule's pose under shifts and rotation."""

    needs = ()

    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        return {
            f"equivariance_{factor}": equivariance(model, split, factor, amount)
            for factor, amount in MOVES.items()
        }
