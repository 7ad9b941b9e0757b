"""Simple learners on what a model makes of images: how much it knows without being told."""

import hashlib
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from torchcaps.analysis.measures import Measure, register_measure
from torchcaps.data import Dataset, Split
from torchcaps.data import load as load_data
from torchcaps.data.spec import parse
from torchcaps.errors import TorchcapsError, nearest
from torchcaps.models import CapsuleModel
from torchcaps.probes import KNN, SVM, KMeans, Linear, Logistic


def representation(model: CapsuleModel, images: Tensor, name: str = "") -> Tensor:
    """One of the model's representations, the first unless it is named. -> [B,N]"""
    found = model.representations(images)
    name = name or next(iter(found))
    if name not in found:
        family = model.config.family
        raise TorchcapsError(f"This {family} has no {name!r}. {nearest(name, list(found))}")
    return found[name].float()


PIXELS = "pixels"
"""The representation that is the image itself, as large as that."""
SPLITS = ("train", "val", "test", "train+val")


@dataclass
class Probe(Measure):
    """Accuracy of a learner that sees nothing but a representation."""

    needs = ()
    features: str = ""
    """Which of the model's representations it sees; empty: the first."""
    fit: str = "train"
    """The split that it learns from: train, val, test, or train+val."""
    on: str = ""
    """The data set that it learns from; empty: the one that it is scored on."""
    limit: int = 0
    """The most images that it learns from; 0: all."""
    scored: int = 0
    """How many images are scored, the last ones, which it then does not learn from; 0: all."""
    pca: int = 0
    """How many principal components of the representation it sees; 0: all of it."""

    def learner(self) -> Any:
        raise NotImplementedError

    @property
    def provenance(self) -> dict[str, str]:
        fit = f"{self.on} {self.fit}".strip()
        return {"fit": fit, **({"features": self.features} if self.features else {})}

    @torch.no_grad()
    def check(self, model: CapsuleModel, data: Dataset) -> None:
        if self.fit not in SPLITS:
            raise TorchcapsError(f"fit={self.fit!r}: give {', '.join(SPLITS)}.")
        if self.on and has_options(self.on):
            raise TorchcapsError(f"on={self.on!r}: a data set without options of its own.")
        device = next(model.parameters()).device
        representation(model, data.test.batch(slice(0, 1)).images.to(device), self.features)

    def counted(self, split: Split) -> int:
        return self.scored or len(split)

    def tell(self, what: str, done: int, total: int) -> None:
        if self.context.told:
            self.context.told(what, done, total)

    @torch.no_grad()
    def learn(self, model: CapsuleModel, data: Dataset) -> None:
        context = self.context
        source = self.on or context.label
        key = (type(self), source, *(getattr(self, f.name) for f in fields(self) if f.name != "on"))
        if key not in context.memory:
            where = data
            if self.on:
                where = load_data(self.on, context.root).to(data.test.images.device)
            features, labels = self._seen(model, where, source)
            components = principal_components(features, self.pca) if self.pca else None
            learned = self.learner().fit(projected(features, components), labels)
            context.memory[key] = components, learned
        self.components, self.learned = context.memory[key]

    def _seen(self, model: CapsuleModel, data: Dataset, label: str) -> tuple[Tensor, Tensor]:
        """What it learns from: representations [N,D] and labels [N]."""
        rows = {}
        for name in self.fit.split("+"):
            split: Split = getattr(data, name)
            labelled = (split.labels >= 0).nonzero()[:, 0]
            if name == "test" and self.scored:
                labelled = labelled[labelled < len(split) - self.scored]
            rows[name] = labelled
        total = sum(map(len, rows.values()))
        if not total:
            raise TorchcapsError(f"{data.name} has no labels for a probe to learn from.")
        if self.limit and self.limit < total:
            chosen = torch.linspace(0, total - 1, self.limit).round().long()
            first = 0
            for name, labelled in rows.items():
                inside = chosen[(chosen >= first) & (chosen < first + len(labelled))] - first
                first += len(labelled)
                rows[name] = labelled[inside.to(labelled.device)]
        features = [self._encoded(model, data, label, name, r) for name, r in rows.items()]
        labels = [getattr(data, name).labels[r] for name, r in rows.items()]
        return torch.cat(features), torch.cat(labels)

    def _encoded(
        self, model: CapsuleModel, data: Dataset, label: str, split: str, rows: Tensor
    ) -> Tensor:
        """Representations of these rows of a split, kept in the run's folder where it has one.

        All that the model has are kept together but for pixels, since one pass makes them all.
        """
        wanted = self.features or next(iter(model.representations(_shown(data, split, rows[:1]))))
        cache, alone = self.context.cache, wanted == PIXELS
        name = f"{label} {split} {wanted if alone else 'all'} {len(rows)}"
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        path = cache / f"{digest}.safetensors" if cache else None
        if path is not None and path.exists():
            return load_file(path)[wanted].to(rows.device)
        found: dict[str, list[Tensor]] = {}
        for number, part in enumerate(rows.split(500)):
            self.tell(f"{label} {split}", 500 * number, len(rows))
            for key, values in model.representations(_shown(data, split, part)).items():
                if (key == PIXELS) == alone:
                    found.setdefault(key, []).append(values.float())
        features = {key: torch.cat(parts) for key, parts in found.items()}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({k: t.cpu().contiguous() for k, t in features.items()}, path, {"of": name})
        return features[wanted]

    @torch.no_grad()
    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        split = split[slice(len(split) - self.scored, None)] if self.scored else split
        labelled = split[(split.labels >= 0).nonzero()[:, 0]]
        seen = [representation(model, b.images, self.features) for b in labelled.batches(500)]
        features = projected(torch.cat(seen), self.components)
        return {self.metrics[0]: self.learned.score(features, labelled.labels)}


def _shown(data: Dataset, split: str, rows: Tensor) -> Tensor:
    """Images of a split; those of training as training sees them, before any augmentation."""
    batch = data.training(rows, rows) if split == "train" else getattr(data, split).batch(rows)
    return batch.images


def has_options(spec: str) -> bool:
    """Whether a data set's name carries options, which an option's value cannot."""
    return bool(parse(spec)[2])


def principal_components(features: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Mean [D] and the first axes [D,count] of features [N,D]."""
    mean = features.mean(0)
    centred = (features - mean).double()
    _, axes = torch.linalg.eigh(centred.T @ centred)
    return mean, axes[:, -count:].flip(1).to(features.dtype)


def projected(features: Tensor, components: tuple[Tensor, Tensor] | None) -> Tensor:
    if components is None:
        return features
    mean, axes = components
    return (features - mean) @ axes


@register_measure("linear", ("linear_accuracy",))
@dataclass
class LinearProbe(Probe):
    """A linear map of the model's representation to classes."""

    def learner(self) -> Linear:
        return Linear()


@register_measure("logistic", ("logistic_accuracy",))
@dataclass
class LogisticProbe(Probe):
    """Logistic regression on the model's representation, its penalty chosen on a tenth."""

    def learner(self) -> Logistic:
        return Logistic()


@register_measure("knn", ("knn_accuracy",))
@dataclass
class NeighbourProbe(Probe):
    """A vote of the nearest neighbours in the model's representation."""

    def learner(self) -> KNN:
        return KNN()


@register_measure("svm", ("svm_accuracy",))
@dataclass
class SVMProbe(Probe):
    """A support vector machine with an RBF kernel on the model's representation."""

    c: float = 100.0
    """How much an error costs."""
    gamma: float = 0.1
    """How fast the kernel falls with squared distance; 0: 1 / (entries x variance)."""
    jobs: int = 0
    """Processes that fit; 0: as many as there are processors."""

    def learner(self) -> SVM:
        told = partial(self.tell, "pairs of classes")
        return SVM(self.c, self.gamma, self.jobs, progress=told)

    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        self.learned.to(split.images.device)
        return super().score(model, data, split)


@register_measure("kmeans", ("kmeans_accuracy",))
@dataclass
class ClusterProbe(Probe):
    """Clusters of the model's representation, each named after the class that suits it best."""

    def learner(self) -> KMeans:
        return KMeans()
