"""What presences carry: how many are on, whether objects differ, what they know of classes.

The bound does not see objects that mean nothing; these numbers do.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.analysis.measures import Measure, register_measure
from torchcaps.data import Dataset, Split
from torchcaps.models import CapsuleModel

LOOKED_AT = 2000


def information(first: Tensor, labels: Tensor) -> tuple[float, float]:
    """The share of images whose label is the commonest of their object, and nats that the object
    tells of the label. first, labels [N]
    """
    rows, columns = int(first.max()) + 1, int(labels.max()) + 1
    table = torch.zeros(rows, columns, dtype=torch.float64, device=first.device)
    table.index_put_((first, labels), torch.ones_like(labels, dtype=torch.float64), accumulate=True)
    joint = table / table.sum()
    apart = joint.sum(0) * joint.sum(1, keepdim=True)
    told = torch.where(joint > 0, joint * (joint / apart.clamp(min=1e-300)).log(), 0.0).sum()
    return float(joint.amax(1).sum()), float(told)


@torch.no_grad()
def presence_numbers(model: CapsuleModel, split: Split, count: int = LOOKED_AT) -> dict[str, float]:
    """Parts and objects that are on in an image, entropy of the first object over images, and with
    labels the majority class and the information of the first object. Without presences: nothing.
    """
    model.eval()
    part = split[torch.arange(min(count, len(split)), device=split.images.device)]
    on: list[Tensor] = []
    objects = []
    for batch in part.batches(500):
        presences = getattr(model.encode(batch.images), "presences", ())
        if not presences:
            return {}
        on.append(torch.stack([(p > 0).float().sum(1).mean() for p in presences]) * len(batch))
        objects.append(next(iter(model.representations(batch.images).values())).argmax(1))
    counts = torch.stack(on).sum(0) / len(part)
    first = torch.cat(objects)
    share = torch.bincount(first).double() / len(first)
    numbers = {
        "parts_on": float(counts[0]),
        "objects_on": float(counts[-1]),
        "object_entropy": float(-(share * share.clamp(min=1e-12).log()).sum()) + 0.0,  # no -0
    }
    labels = part.labels
    if labels.ndim == 1 and bool((labels >= 0).all()):
        numbers["majority"], numbers["information"] = information(first, labels)
    return numbers


@register_measure(
    "presences", ("parts_on", "objects_on", "object_entropy", "majority", "information")
)
@dataclass
class Presences(Measure):
    """Parts and objects that are on, and what the first object knows of the label."""

    needs = ("bound",)
    images: int = 10000
    """The most images that are looked at."""

    def counted(self, split: Split) -> int:
        return min(len(split), self.images)

    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        return presence_numbers(model, split, self.images)
