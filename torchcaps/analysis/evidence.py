"""The evidence bound of images, by draws from the posterior."""

from dataclasses import dataclass

import torch

from torchcaps.analysis.measures import Measure, register_measure
from torchcaps.data import Dataset, Split
from torchcaps.models import CapsuleModel


@register_measure("bound", ("bound",))
@dataclass
class EvidenceBound(Measure):
    """The evidence bound of an image in nats, over draws of all that is random.

    Of poses that are point estimates it lacks an entropy, and is not to be set beside one that has
    it.
    """

    needs = ("bound",)
    single_labels = False
    draws: int = 4
    """How many draws of each image are averaged."""
    seed: int = 0

    @torch.no_grad()
    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        model.eval()
        total = 0.0
        device = split.images.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            for batch in split.batches(500):
                for _ in range(self.draws):
                    terms = model.bound(batch.images, noise=True).terms.values()
                    total += float(torch.stack(list(terms)).double().sum())
        return {"bound": total / self.draws / len(split)}
