"""Metrics of presences: how many are on, how objects differ, how much they tell about classes.

The bound does not detect objects without a meaning; these numbers do.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.data import Dataset, Split
from torchcaps.metrics.base import Metric, register_metric
from torchcaps.models import Model


def information(objects: Tensor, labels: Tensor) -> tuple[float, float]:
    """Accuracy of the majority label of each object, and the mutual information of object and label
    in nats. objects, labels [N]
    """
    rows, columns = int(objects.max()) + 1, int(labels.max()) + 1
    table = torch.zeros(rows, columns, dtype=torch.float64, device=objects.device)
    ones = torch.ones_like(labels, dtype=torch.float64)
    table.index_put_((objects, labels), ones, accumulate=True)
    joint = table / table.sum()
    product = joint.sum(0) * joint.sum(1, keepdim=True)
    nats = torch.where(joint > 0, joint * (joint / product.clamp(min=1e-300)).log(), 0.0).sum()
    return float(joint.amax(1).sum()), float(nats)


@torch.no_grad()
def presence_numbers(model: Model, split: Split, count: int | None = None) -> dict[str, float]:
    """Parts and objects that are on in an image and the entropy of the strongest object; with
    labels also its majority accuracy and mutual information. Empty for models without presences.

    count: so many images, the first of the split; None: all
    """
    model.eval()
    subset = split[:count]
    on: list[Tensor] = []
    objects = []
    for batch in subset.batches(500):
        presences = getattr(model.encode(batch.images), "presences", ())
        if not presences:
            return {}
        on.append(torch.stack([(p > 0).float().sum(1).mean() for p in presences]) * len(batch))
        objects.append(next(iter(model.representations(batch.images).values())).argmax(1))
    counts = torch.stack(on).sum(0) / len(subset)
    strongest = torch.cat(objects)
    share = torch.bincount(strongest).double() / len(strongest)
    numbers = {
        "parts_on": float(counts[0]),
        "objects_on": float(counts[-1]),
        "object_entropy": float(-(share * share.clamp(min=1e-12).log()).sum()) + 0.0,  # no -0
    }
    labels = subset.labels
    if labels.ndim == 1 and bool((labels >= 0).all()):
        numbers["majority"], numbers["information"] = information(strongest, labels)
    return numbers


@register_metric(
    "presences", ("parts_on", "objects_on", "object_entropy", "majority", "information")
)
@dataclass
class Presences(Metric):
    """Parts and objects that are on, and how much the strongest object tells about the label."""

    needs = ("bound",)
    images: int = 10000
    """Maximum number of images."""

    def counted(self, split: Split) -> int:
        return min(len(split), self.images)

    def score(self, model: Model, data: Dataset, split: Split) -> dict[str, float]:
        return presence_numbers(model, split, self.images)


@register_metric("bound", ("bound",))
@dataclass
class EvidenceBound(Metric):
    """Evidence bound of an image in nats, averaged over samples of the posterior.

    With point estimates of poses it lacks their entropy; do not compare it with a full bound.
    """

    needs = ("bound",)
    single_labels = False
    draws: int = 4
    """Samples averaged for each image."""
    seed: int = 0
    """Seed of the samples."""

    @torch.no_grad()
    def score(self, model: Model, data: Dataset, split: Split) -> dict[str, float]:
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
