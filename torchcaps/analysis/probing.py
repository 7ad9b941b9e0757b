"""Simple learners on what a model makes of images: how much it knows without being told."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchcaps.analysis.measures import Measure, register_measure
from torchcaps.data import Dataset, Split
from torchcaps.errors import TorchcapsError, nearest
from torchcaps.models import CapsuleModel
from torchcaps.probes import KNN, Linear


def representation(model: CapsuleModel, images: Tensor, name: str = "") -> Tensor:
    """One of the model's representations, the first unless it is named. -> [B,N]"""
    found = model.representations(images)
    name = name or next(iter(found))
    if name not in found:
        family = model.config.family
        raise TorchcapsError(f"This {family} has no {name!r}. {nearest(name, list(found))}")
    return found[name].float()


@dataclass
class Probe(Measure):
    """Accuracy of a learner that sees nothing but a representation."""

    needs = ()
    features: str = ""
    """Which of the model's representations it sees; empty: the first."""
    fit: str = "train"
    """The split that it learns from."""
    limit: int = 0
    """The most images that it learns from; 0: all."""

    def learner(self) -> Any:
        raise NotImplementedError

    @torch.no_grad()
    def check(self, model: CapsuleModel, data: Dataset) -> None:
        if self.fit not in ("train", "val", "test"):
            raise TorchcapsError(f"fit={self.fit!r}: give train, val or test.")
        device = next(model.parameters()).device
        representation(model, data.test.batch(slice(0, 1)).images.to(device), self.features)

    @torch.no_grad()
    def learn(self, model: CapsuleModel, data: Dataset) -> None:
        split: Split = getattr(data, self.fit)
        labelled = (split.labels >= 0).nonzero()[:, 0]
        if not len(labelled):
            raise TorchcapsError(f"{data.name} has no labels for a probe to learn from.")
        count = min(self.limit or len(labelled), len(labelled))
        evenly = torch.linspace(0, len(labelled) - 1, count, device=labelled.device)
        rows = labelled[evenly.round().long()]
        seen = []
        for part in rows.split(500):
            # training images as training sees them, before any augmentation
            batch = data.training(part, part) if self.fit == "train" else split.batch(part)
            seen.append(representation(model, batch.images, self.features))
        self.learned = self.learner().fit(torch.cat(seen), split.labels[rows])

    @torch.no_grad()
    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        labelled = split[(split.labels >= 0).nonzero()[:, 0]]
        seen = [representation(model, b.images, self.features) for b in labelled.batches(500)]
        return {self.metrics[0]: self.learned.score(torch.cat(seen), labelled.labels)}


@register_measure("linear", ("linear_accuracy",))
@dataclass
class LinearProbe(Probe):
    """A linear map of the model's representation to classes."""

    def learner(self) -> Linear:
        return Linear()


@register_measure("knn", ("knn_accuracy",))
@dataclass
class NeighbourProbe(Probe):
    """A vote of the nearest neighbours in the model's representation."""

    def learner(self) -> KNN:
        return KNN()
