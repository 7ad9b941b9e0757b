"""The metric `segmentation`: compare the objects of points with the true patterns."""

from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

from torchcaps.data import Dataset, Split
from torchcaps.metrics.base import Metric, register_metric
from torchcaps.models import Model
from torchcaps.papers.generative.constellations.model import PointModel


def matched(owners: Tensor, labels: Tensor) -> Tensor:
    """Number of points whose object matches their pattern, under each scene's best matching.

    owners, labels [B,P], -1: no object, no point -> [B]
    """
    count = int(max(owners.max(), labels.max())) + 1
    mask = labels >= 0
    best = torch.zeros(len(labels), dtype=torch.long, device=labels.device)
    for order in permutations(range(count), int(labels.max()) + 1):
        target = torch.tensor(order, device=labels.device)[labels.clamp(min=0)]
        best = torch.maximum(best, ((target == owners) & mask).sum(1))
    return best


@register_metric("segmentation", ("segmentation",))
@dataclass
class Segmentation(Metric):
    """Fraction of the points that are assigned to the correct object."""

    needs = ("segments",)
    single_labels = False
    solved: int = 0
    """Iterations of EM in closed form from the encoder's poses; 0: the encoder's poses."""
    starts: int = 0
    """Random starts of EM that replace the encoder's; 0: start from the encoder."""

    @property
    def provenance(self) -> dict[str, str]:
        if not self.solved:
            return {}
        start = f"{self.starts} random starts" if self.starts else "the encoder"
        return {"features": f"EM from {start}"}

    @torch.no_grad()
    def score(self, model: Model, data: Dataset, split: Split) -> dict[str, float]:
        assert isinstance(model, PointModel)
        correct = points = 0
        for batch in split.batches(500):
            owners = model.owners(batch.images, self.solved, self.starts)
            correct += int(matched(owners, batch.labels).sum())
            points += int((batch.labels >= 0).sum())
        return {"segmentation": correct / points}
