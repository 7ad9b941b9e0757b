"""Which points belong together: objects against the patterns of a constellation."""

from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Tensor

from torchcaps.analysis.measures import Measure, register_measure
from torchcaps.data import Dataset, Split
from torchcaps.models import CapsuleModel
from torchcaps.models.constellation import PointModel


def matched(owners: Tensor, labels: Tensor) -> Tensor:
    """Points whose object is that of their pattern, as each scene's best matching has it. -> [B]

    owners, labels [B,P], -1: none
    """
    most = int(max(owners.max(), labels.max())) + 1
    there = labels >= 0
    best = torch.zeros(len(labels), dtype=torch.long, device=labels.device)
    for order in permutations(range(most), int(labels.max()) + 1):
        wanted = torch.tensor(order, device=labels.device)[labels.clamp(min=0)]
        best = torch.maximum(best, ((wanted == owners) & there).sum(1))
    return best


@register_measure("segmentation", ("segmentation",))
@dataclass
class Segmentation(Measure):
    """The share of a constellation's points that belong to the right object."""

    needs = ("segments",)
    single_labels = False
    solved: int = 0
    """Rounds of EM in closed form from where the encoder puts objects; 0: the encoder's word."""
    starts: int = 0
    """Random starts of EM in place of the encoder's; 0: none."""

    @property
    def provenance(self) -> dict[str, str]:
        if not self.solved:
            return {}
        where = f"{self.starts} random starts" if self.starts else "the encoder"
        return {"features": f"EM from {where}"}

    @torch.no_grad()
    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        assert isinstance(model, PointModel)
        right = points = 0
        for batch in split.batches(500):
            owners = model.owners(batch.images, self.solved, self.starts)
            right += int(matched(owners, batch.labels).sum())
            points += int((batch.labels >= 0).sum())
        return {"segmentation": right / points}
