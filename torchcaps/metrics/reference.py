"""What an accuracy is compared with: baselines on the same images, the size of the test set as an
interval, and the ConvNet to train beside a model of photographs.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

import torch

from torchcaps.data import Dataset, Split
from torchcaps.metrics.accuracy import labeled
from torchcaps.metrics.baselines import SOFTMAX, inputs

if TYPE_CHECKING:
    from torchcaps.models import Model

CONVNET = "convnet-modern"
"""The strongest ConvNet baseline for photographs."""
PLAIN_HEADS = ("vote-head", "mlp-head", "linear-head")
"""Heads without capsules on the features of a backbone, the strongest first."""
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
class Baseline:
    """A simple classifier on the same images."""

    name: str
    on: str
    """What it sees: pixels, or features of the model's backbone; empty for a constant guess."""
    accuracy: float
    interval_95: tuple[float, float]
    fitted_on: int
    """Number of training images; 0 for a constant guess."""

    @property
    def title(self) -> str:
        return f"{self.name}, {self.on}" if self.on else self.name


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
    baselines: tuple[Baseline, ...] = ()
    """The majority class and the classifiers of `torchcaps.metrics.baselines`."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Reference":
        baselines = (Baseline(**one) for one in values["baselines"])
        return cls(**{**values, "baselines": tuple(baselines)})

    @property
    def best(self) -> Baseline:
        return max(self.baselines, key=lambda one: one.accuracy)

    def verdict(self, name: str, accuracy: float) -> str:
        """Who wins, a classifier of these images or the best baseline, in a sentence."""
        best, own = self.best, wilson(accuracy, self.images)
        apart = 100 * (accuracy - best.accuracy)
        low, high = best.interval_95
        overlap = own[0] <= high and low <= own[1]
        text = f"the best baseline ({best.title}: {100 * best.accuracy:.2f} %)"
        intervals = f"their 95 % intervals {'overlap' if overlap else 'do not overlap'}"
        if not apart:
            return f"{name} is level with {text}."
        if apart > 0:
            return f"{name} wins: {apart:.1f} points above {text}; {intervals}."
        return f"{name} loses: {-apart:.1f} points below {text}; {intervals}."

    def lines(self) -> list[str]:
        """A line for each baseline, as commands print them."""
        width = max(len(one.title) for one in self.baselines)
        return [
            f"{one.title:{width}}  {one.accuracy:.4f} ({interval_text(*one.interval_95)})"
            for one in self.baselines
        ]


def reference(
    data: Dataset | None, test: Split, classes: tuple[str, ...], model: "Model | None" = None
) -> Reference | None:
    """Reference accuracies on the labeled images of a split; None without single labels.

    data: gives the training images of the baselines; None: the majority class alone. model: its
    baselines see the maps of its backbone, if that is frozen
    """
    if not classes or test.labels.ndim != 1 or test.images.ndim != 4:
        return None
    test = labeled(test)
    if not len(test):
        return None
    counts = torch.bincount(test.labels, minlength=len(classes))
    name, majority = classes[int(counts.argmax())], float(counts.max()) / len(test)

    def baseline(title: str, on: str, accuracy: float, fitted_on: int) -> Baseline:
        return Baseline(title, on, accuracy, wilson(accuracy, len(test)), fitted_on)

    results = [baseline("majority class", "", majority, 0)]
    pixels = inputs(data, test) if data is not None else None
    if data is None or pixels is None:
        return Reference(len(test), name, majority, baselines=tuple(results))
    seen = inputs(data, test, model)
    assert seen is not None
    fitted_on = len(seen.labels)
    results += [
        baseline(title, seen.name, accuracy, fitted_on)
        for title, accuracy in seen.accuracies(test.labels)
    ]
    on_pixels = (one.accuracy for one in results if (one.name, one.on) == (SOFTMAX, pixels.name))
    softmax = next(on_pixels, None)
    if softmax is None:
        ((_, softmax),) = pixels.accuracies(test.labels, (SOFTMAX,))
    return Reference(len(test), name, majority, softmax, fitted_on, tuple(results))


def are_photographs(data: Dataset) -> bool:
    """Return True for images with three channels that differ."""
    split = data.val
    if split.images.ndim != 4 or split.images.shape[1] != 3 or not len(split):
        return False
    images = split.batch(torch.linspace(0, len(split) - 1, min(64, len(split))).long()).images
    return float((images.amax(1) - images.amin(1)).mean()) > COLOR


def rival(data: Dataset, family: str) -> tuple[str, str]:
    """The family to beat on photographs, and what it is; empty if there is none."""
    if family in (CONVNET, *PLAIN_HEADS) or not data.classes or not are_photographs(data):
        return "", ""
    if family == "capsule-head":
        return PLAIN_HEADS[0], "the strongest head without capsules"
    return CONVNET, "the strongest ConvNet baseline"


def advice(data: Dataset, family: str) -> str:
    """What else to train on photographs; empty if the model is that one or there are no classes."""
    name, kind = rival(data, family)
    return f"For photographs also train {name}, {kind}." if name else ""
