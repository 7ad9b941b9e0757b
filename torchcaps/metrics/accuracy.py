"""Accuracy: the top class, all of several labels, or exactly those labels."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchcaps.data import Batch, Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.losses import multi_hot
from torchcaps.metrics.base import Metric, register_metric

if TYPE_CHECKING:
    from torchcaps.models import Model, Output


def outputs(
    model: "Model", split: Split, batch_size: int = 500
) -> Iterator[tuple[Batch, "Output"]]:
    """Batches of a split with the model's outputs, without its decoder."""
    split = model.with_features(split) if getattr(model, "frozen", False) else split
    for batch in split.batches(batch_size):
        yield batch, model.encode(batch.images)


def logits_of(output: "Output") -> Tensor:
    """Logits of an output [B,Y], or an error for a model without classes."""
    if output.logits is None:
        raise TorchcapsError("This model has no classes, so it has no accuracy.")
    return output.logits


def labeled(split: Split) -> Split:
    """The images of a split that have a label."""
    return split[split.labels.reshape(len(split.labels), -1)[:, 0] >= 0]


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Mask of correct images: the top class matches, or both of the top two. -> [B] bool"""
    if labels.ndim == 1:
        return logits.argmax(-1) == labels
    top = logits.topk(labels.shape[1], -1).indices
    counted = torch.arange(labels.shape[1], device=labels.device) < (labels >= 0).sum(
        1, keepdim=True
    )
    hit = (top[:, :, None] == labels[:, None, :]).any(-1)
    return (hit | ~counted).all(-1)


def exact(output: "Output", labels: Tensor) -> Tensor:
    """Mask of images with exactly their labels above one half. labels [B,M] -> [B] bool"""
    scores = logits_of(output).sigmoid() if output.scores is None else output.scores
    return ((scores > 0.5) == (multi_hot(labels, scores.shape[1]) > 0)).all(-1)


class Counter:
    """Count correct labeled images of a split, batch by batch, on its device."""

    def __init__(self, split: Split):
        device = split.images.device
        self.several = split.labels.ndim == 2
        self.right, self.exact, self.total = (torch.zeros((), device=device) for _ in range(3))

    def add(self, output: "Output", labels: Tensor) -> None:
        """Count a batch."""
        has_label = labels.reshape(len(labels), -1)[:, 0] >= 0
        self.right += (correct(logits_of(output), labels) & has_label).sum()
        if self.several:
            self.exact += (exact(output, labels) & has_label).sum()
        self.total += has_label.sum()

    def numbers(self) -> dict[str, float]:
        """Accuracy; with several labels per image also the rate of exact matches."""
        count = max(1.0, float(self.total))
        rates = {"accuracy": float(self.right) / count}
        return rates | ({"exact_match": float(self.exact) / count} if self.several else {})


@torch.no_grad()
def accuracy(model: "Model", split: Split) -> dict[str, float]:
    """Accuracy of a model on a split; with several labels per image also exact match."""
    model.eval()
    counter = Counter(split)
    for batch, output in outputs(model, split):
        counter.add(output, batch.labels)
    return counter.numbers()


def probabilities(output: "Output", temperature: float | None = None) -> Tensor:
    """Probability of each class: the scores of a model that has them, or a softmax. -> [B,Y]

    Scores above one are divided by the largest score of their image. temperature: give a softmax of
    the logits divided by it instead
    """
    if temperature is not None:
        return (logits_of(output).float() / temperature).softmax(-1)
    if output.scores is not None:
        scores = output.scores.float()
        return scores / scores.amax(-1, keepdim=True).clamp(min=1)
    return logits_of(output).float().softmax(-1)


@torch.no_grad()
def claims(model: "Model", split: Split, *, calibrated: bool = False) -> tuple[Tensor, Tensor]:
    """Predict the labeled images of a split. -> probabilities [N,Y], labels [N]

    calibrated: at the model's temperature, if it has one
    """
    model.eval()
    images = labeled(split)
    if not len(images):
        raise TorchcapsError("No image of this split has a label; accuracy needs labels.")
    temperature = model.temperature if calibrated else None
    batches = [
        (probabilities(output, temperature), batch.labels)
        for batch, output in outputs(model, images)
    ]
    return torch.cat([p for p, _ in batches]), torch.cat([y for _, y in batches])


def confusion(predicted: Tensor, labels: Tensor) -> np.ndarray:
    """Confusion matrix: true class (row), predicted class (column).

    predicted [N,Y], labels [N] -> counts [Y,Y]
    """
    classes = predicted.shape[1]
    cells = labels * classes + predicted.argmax(-1)
    return torch.bincount(cells, minlength=classes**2).reshape(classes, classes).cpu().numpy()


@register_metric("accuracy", ("accuracy", "exact_match"))
@dataclass
class Accuracy(Metric):
    """Accuracy; on images of several objects also the rate of exactly correct label sets."""

    single_labels = False

    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        return accuracy(model, split)


@register_metric("train", ("train_accuracy",))
@dataclass
class Training(Metric):
    """Accuracy on training images, before augmentation."""

    single_labels = False
    images: int = 10_000
    """Number of images, evenly spaced over the training split."""

    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        total = len(data.train)
        device = data.train.images.device
        rows = torch.linspace(0, total - 1, min(self.images, total), device=device).round().long()
        batches = [data.training(r, r) for r in rows.split(500)]
        images = torch.cat([b.images for b in batches])
        maps = data.train.images.dtype == torch.float16
        images = images.half() if maps else (images * 255).round().byte()
        sample = Split(images, torch.cat([b.labels for b in batches]))
        return {"train_accuracy": accuracy(model, sample)["accuracy"]}


@register_metric("mirrored", ("mirrored_accuracy",))
@dataclass
class Mirrored(Metric):
    """Accuracy with the mean prediction of an image and its mirror image."""

    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        upright, labels = claims(model, split)
        mirrored, _ = claims(model, replace(split, images=split.images.flip(3)))
        right = (upright + mirrored).argmax(-1) == labels
        return {"mirrored_accuracy": float(right.float().mean())}
