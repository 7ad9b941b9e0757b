"""What an accuracy is compared with: a constant guess, a softmax regression on small images, the
size of the test set as an interval, and the ConvNet to train beside a model of photographs.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.data import Dataset, Split
from torchcaps.metrics.accuracy import labeled
from torchcaps.metrics.probes import Logistic

CONVNET = "convnet-modern"
"""The strongest ConvNet baseline for photographs."""
SIDE = 16
"""Side in pixels of the images of the softmax regression."""
FITTED = 5000
"""Most training images of the softmax regression, evenly over the split."""
PENALTY = 1e-2
"""Penalty of the softmax regression on standardized pixels."""
COLOR = 0.03
"""Least mean difference between the channels of color images."""
SHARES = ("accuracy", "exact_match")
"""Ends of the names of metrics that are a share of the images."""


def wilson(share: float, count: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a share of `count` images; 95 % by default.

    >>> low, high = wilson(0.5, 100)
    >>> round(low, 3), round(high, 3)
    (0.404, 0.596)
    """
    if count < 1:
        return 0.0, 1.0
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2) / (1 + z * z / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def with_intervals(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Result lines; those of a share of images with its interval as `interval_95`."""
    return [
        {**line, "interval_95": list(wilson(line["value"], line["n"]))} if _is_share(line) else line
        for line in lines
    ]


def _is_share(line: dict[str, Any]) -> bool:
    return line["metric"].endswith(SHARES) and "n" in line and 0 <= line["value"] <= 1


def interval_text(low: float, high: float) -> str:
    """An interval as commands print it."""
    return f"95 % interval {low:.4f} to {high:.4f}"


@dataclass(frozen=True)
class Reference:
    """Accuracies to compare a classifier with, on the same images."""

    images: int
    """Number of labeled images."""
    majority_class: str
    majority_accuracy: float
    """Accuracy of always predicting the most frequent class of these images."""
    softmax_accuracy: float | None = None
    """Accuracy of a softmax regression on images of 16x16 pixels, fitted on the training split;
    None without training images."""
    softmax_fitted_on: int = 0
    """Number of training images of the softmax regression."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        text = f"always {self.majority_class!r}: {self.majority_accuracy:.4f}"
        if self.softmax_accuracy is not None:
            text += f"; softmax regression on {SIDE}x{SIDE} pixels: {self.softmax_accuracy:.4f}"
        return text


def reference(data: Dataset | None, test: Split, classes: tuple[str, ...]) -> Reference | None:
    """Reference accuracies on the labeled images of a split; None without single labels.

    data: gives the training images of the softmax regression; None: leave it out
    """
    if not classes or test.labels.ndim != 1 or test.images.ndim != 4:
        return None
    test = labeled(test)
    if not len(test):
        return None
    counts = torch.bincount(test.labels, minlength=len(classes))
    result = Reference(len(test), classes[int(counts.argmax())], float(counts.max()) / len(test))
    train = _training_images(data) if data is not None else None
    if train is None:
        return result
    learned = Logistic(penalties=(PENALTY,)).fit(*(t.to(test.images.device) for t in train))
    right = sum(
        int((learned.predict(_small(batch.images)) == batch.labels).sum())
        for batch in test.batches(1000)
    )
    return Reference(
        result.images, result.majority_class, result.majority_accuracy, right / len(test),
        len(train[1]),
    )  # fmt: skip


def _training_images(data: Dataset) -> tuple[Tensor, Tensor] | None:
    """Small training images as vectors [N,D] and their labels [N]; None without labels."""
    rows = (data.train.labels >= 0).nonzero()[:, 0] if data.train.labels.ndim == 1 else None
    if rows is None or not len(rows):
        return None
    evenly = torch.linspace(0, len(rows) - 1, min(FITTED, len(rows))).round().long()
    parts = [data.training(part, part) for part in rows[evenly.to(rows.device)].split(1000)]
    return torch.cat([_small(p.images) for p in parts]), torch.cat([p.labels for p in parts])


def _small(images: Tensor) -> Tensor:
    """Images [B,C,H,W] as vectors of 16x16 pixels [B,D]."""
    return F.interpolate(images.float(), (SIDE, SIDE), mode="area").flatten(1)


def are_photographs(data: Dataset) -> bool:
    """Return True for images with three channels that differ."""
    split = data.val
    if split.images.ndim != 4 or split.images.shape[1] != 3 or not len(split):
        return False
    images = split.batch(torch.linspace(0, len(split) - 1, min(64, len(split))).long()).images
    return float((images.amax(1) - images.amin(1)).mean()) > COLOR


def advice(data: Dataset, family: str) -> str:
    """What else to train on photographs; empty if the model is that one or there are no classes."""
    if family == CONVNET or not data.classes or not are_photographs(data):
        return ""
    return f"For photographs also train {CONVNET}, the strongest ConvNet baseline."
