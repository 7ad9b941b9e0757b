"""Probes: the accuracy of simple classifiers on a model's representation of images."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from torchcaps.data import Dataset, Split
from torchcaps.data import load as load_data
from torchcaps.data.spec import parse
from torchcaps.errors import TorchcapsError, nearest
from torchcaps.metrics.accuracy import labeled
from torchcaps.metrics.base import Metric, register_metric
from torchcaps.metrics.probes import KNN, SVM, KMeans, Linear, Logistic

if TYPE_CHECKING:
    from torchcaps.models import Model


def representation(model: "Model", images: Tensor, name: str = "") -> Tensor:
    """A model's representation of images, by default its first one. -> [B,N]"""
    features = model.representations(images)
    name = name or next(iter(features))
    if name not in features:
        raise TorchcapsError(
            f"{model.config.family} has no representation {name!r}. {nearest(name, list(features))}"
        )
    return features[name].float()


PIXELS = "pixels"
"""The image itself as a representation; it is large, so it is cached separately."""
SPLITS = ("train", "val", "test", "train+val")


@dataclass
class Probe(Metric):
    """Accuracy of a classifier on a frozen representation."""

    needs = ()
    features: str = ""
    """Name of the representation; empty: the model's first."""
    fit: str = "train"
    """Split to fit on: train, val, test or train+val."""
    on: str = ""
    """Data set to fit on; empty: the one to score on."""
    limit: int = 0
    """Largest number of images to fit on; 0: all."""
    scored: int = 0
    """Number of images to score, the last of the split, which are not fitted on; 0: all."""
    pca: int = 0
    """Number of principal components of the representation to use; 0: no reduction."""

    learner: ClassVar[Callable[..., Any]]
    """Make an unfitted classifier."""

    @property
    def provenance(self) -> dict[str, str]:
        fit = f"{self.on} {self.fit}".strip()
        return {"fit": fit, **({"features": self.features} if self.features else {})}

    @torch.no_grad()
    def check(self, model: "Model", data: Dataset) -> None:
        if self.fit not in SPLITS:
            raise TorchcapsError(f"fit={self.fit!r} is not one of {', '.join(SPLITS)}.")
        if self.on and has_options(self.on):
            raise TorchcapsError(f"on={self.on!r} has options; name a data set without options.")
        device = next(model.parameters()).device
        representation(model, data.test.batch(slice(0, 1)).images.to(device), self.features)

    def counted(self, split: Split) -> int:
        return self.scored or len(split)

    def scored_rows(self, split: Split) -> Split:
        return split[slice(len(split) - self.scored, None)] if self.scored else split

    def tell(self, what: str, done: int, total: int) -> None:
        """Report progress."""
        if self.context.progress:
            self.context.progress(what, done, total)

    @torch.no_grad()
    def learn(self, model: "Model", data: Dataset) -> None:
        context = self.context
        source = self.on or context.label
        key = (type(self), source, *(getattr(self, f.name) for f in fields(self) if f.name != "on"))
        if key not in context.memory:
            other = data
            if self.on:
                other = load_data(self.on, context.root).to(data.test.images.device)
            features, labels = self._training_set(model, other, source)
            components = principal_components(features, self.pca) if self.pca else None
            learned = self.learner().fit(projected(features, components), labels)
            context.memory[key] = components, learned
        self.components, self.learned = context.memory[key]

    def _training_set(self, model: "Model", data: Dataset, label: str) -> tuple[Tensor, Tensor]:
        """Representations [N,D] and labels [N] to fit on."""
        rows = {}
        for name in self.fit.split("+"):
            split: Split = getattr(data, name)
            rows[name] = (split.labels >= 0).nonzero()[:, 0]
            if name == "test" and self.scored:
                rows[name] = rows[name][rows[name] < len(split) - self.scored]
        total = sum(map(len, rows.values()))
        if not total:
            raise TorchcapsError(f"The {self.fit} split of {data.name} has no labels for a probe.")
        if self.limit and self.limit < total:
            chosen = torch.linspace(0, total - 1, self.limit).round().long()
            first = 0
            for name, all_rows in rows.items():
                inside = chosen[(chosen >= first) & (chosen < first + len(all_rows))] - first
                first += len(all_rows)
                rows[name] = all_rows[inside.to(all_rows.device)]
        features = [self._encode(model, data, label, name, r) for name, r in rows.items()]
        labels = [getattr(data, name).labels[r] for name, r in rows.items()]
        return torch.cat(features), torch.cat(labels)

    def _encode(
        self, model: "Model", data: Dataset, label: str, split: str, rows: Tensor
    ) -> Tensor:
        """Representation of rows of a split, cached in the context's folder if it has one.

        One file holds all representations of one forward pass; pixels have their own file.
        """
        name = self.features or next(iter(model.representations(_images(data, split, rows[:1]))))
        cache, only_pixels = self.context.cache, name == PIXELS
        key = f"{label} {split} {name if only_pixels else 'all'} {len(rows)}"
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        path = cache / f"{digest}.safetensors" if cache else None
        if path is not None and path.exists():
            return load_file(path)[name].to(rows.device)
        chunks: dict[str, list[Tensor]] = {}
        for number, part in enumerate(rows.split(500)):
            self.tell(f"{label} {split}", 500 * number, len(rows))
            for kind, values in model.representations(_images(data, split, part)).items():
                if (kind == PIXELS) == only_pixels:
                    chunks.setdefault(kind, []).append(values.float())
        features = {kind: torch.cat(values) for kind, values in chunks.items()}
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_file({k: t.cpu().contiguous() for k, t in features.items()}, path, {"of": key})
        return features[name]

    @torch.no_grad()
    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        test = labeled(self.scored_rows(split))
        chunks = [representation(model, b.images, self.features) for b in test.batches(500)]
        features = projected(torch.cat(chunks), self.components)
        return {self.values[0]: self.learned.score(features, test.labels)}


def _images(data: Dataset, split: str, rows: Tensor) -> Tensor:
    """Images of a split; training images as in training, before augmentation."""
    batch = data.training(rows, rows) if split == "train" else getattr(data, split).batch(rows)
    return batch.images


def has_options(spec: str) -> bool:
    """Return True for a data set's name with options, which the value of an option cannot have."""
    return bool(parse(spec)[2])


def principal_components(features: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Principal components of features [N,D]. -> mean [D], first axes [D,count]"""
    mean = features.mean(0)
    centered = (features - mean).double()
    _, axes = torch.linalg.eigh(centered.T @ centered)
    return mean, axes[:, -count:].flip(1).to(features.dtype)


def projected(features: Tensor, components: tuple[Tensor, Tensor] | None) -> Tensor:
    """Features projected on principal components; None: unchanged. [N,D] -> [N,count]"""
    if components is None:
        return features
    mean, axes = components
    return (features - mean) @ axes


@register_metric("linear", ("linear_accuracy",))
@dataclass
class LinearProbe(Probe):
    """Ridge probe: ridge regression on the model's representation."""

    learner = Linear


@register_metric("logistic", ("logistic_accuracy",))
@dataclass
class LogisticProbe(Probe):
    """Softmax linear probe on the representation; a tenth of the images sets the penalty."""

    learner = Logistic


@register_metric("knn", ("knn_accuracy",))
@dataclass
class NeighborProbe(Probe):
    """k nearest neighbors in the model's representation."""

    learner = KNN


@register_metric("svm", ("svm_accuracy",))
@dataclass
class SVMProbe(Probe):
    """RBF support vector machine on the model's representation."""

    c: float = 100.0
    """Cost of an error (C in scikit-learn)."""
    gamma: float = 0.1
    """Kernel coefficient of the squared distance; 0: 1 / (features x variance)."""
    jobs: int = 0
    """Number of processes; 0: one for each CPU."""

    def learner(self) -> SVM:
        progress = partial(self.tell, "pairs of classes")
        return SVM(self.c, self.gamma, self.jobs, progress=progress)

    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        self.learned.to(split.images.device)
        return super().score(model, data, split)


@register_metric("kmeans", ("kmeans_accuracy",))
@dataclass
class ClusterProbe(Probe):
    """k-means clusters of the model's representation, matched one-to-one to classes."""

    learner = KMeans
