"""Calibration: expected calibration error, the reliability curve behind it, and the temperature at
which a model's class probabilities fit its accuracy.

The temperature (Guo et al. 2017) minimizes the cross-entropy of softmax(logits / temperature) on
validation images. As in Platt's scaling (1999) the target of the true class is (N+1)/(N+2) for N
images: without errors among them the best temperature would be zero.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from torchcaps.data import Dataset, Split
from torchcaps.errors import require
from torchcaps.metrics.accuracy import claims, labeled, logits_of, outputs
from torchcaps.metrics.base import Metric, register_metric

if TYPE_CHECKING:
    from torchcaps.models import Model

NUM_BINS = 15
MOST = 10.0
"""Largest logarithm of a temperature, of a model that guesses, and of its inverse."""
FEWEST = 20
"""Fewest validation images that decide a temperature."""


def fit_temperature(logits: torch.Tensor, labels: torch.Tensor) -> float:
    """The temperature with the lowest smoothed cross-entropy. logits [N,Y], labels [N]

    >>> logits = torch.tensor([[2.0, 0.0]] * 10)  # 9 of 10 are of the first class
    >>> temperature = fit_temperature(logits, torch.tensor([0] * 9 + [1]))
    >>> round((logits[0] / temperature).softmax(0)[0].item(), 2)
    0.83
    """
    z, (count, classes) = logits.double(), logits.shape
    rest = 1 / (count + 2) / max(1, classes - 1)
    target = torch.full_like(z, rest).scatter(1, labels[:, None], (count + 1) / (count + 2))
    wanted = (target * z).sum(1).mean()
    low, high = -MOST, MOST  # of the logarithm of 1 / temperature
    for _ in range(60):  # the slope of the loss grows with 1 / temperature: halve the interval
        middle = (low + high) / 2
        slope = ((z * np.exp(middle)).softmax(1) * z).sum(1).mean() - wanted
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float(np.exp(-(low + high) / 2))


@torch.no_grad()
def learned_temperature(model: "Model", val: Split) -> float | None:
    """The temperature of a classifier by its validation images; None if they are too few, or have
    several labels.
    """
    if "logits" not in model.provides or val.labels.ndim != 1:
        return None
    images = labeled(val)
    if len(images) < FEWEST:
        return None
    model.eval()
    pairs = [(logits_of(output), batch.labels) for batch, output in outputs(model, images)]
    return fit_temperature(*(torch.cat(parts) for parts in zip(*pairs, strict=True)))


def calibration_error(model: "Model", split: Split, *, calibrated: bool = False) -> float:
    """Mean distance between confidence and accuracy over 15 bins of confidence.

    calibrated: at the model's temperature, if it has one
    """
    functional = require("torchmetrics.functional.classification", "analysis")
    predicted, labels = claims(model, split, calibrated=calibrated)
    error = functional.multiclass_calibration_error(
        predicted, labels, num_classes=predicted.shape[1], n_bins=NUM_BINS, validate_args=False
    )
    return float(error)


def reliability(model: "Model", split: Split) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """-> mean confidence, accuracy and number of images of each bin; empty bins are NaN.

    At the model's temperature, if it has one.
    """
    predicted, labels = claims(model, split, calibrated=True)
    confidence, classes = (t.cpu() for t in predicted.max(-1))
    right = (classes == labels.cpu()).double()
    bins = (confidence * NUM_BINS).long().clamp(max=NUM_BINS - 1)

    def total(values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(NUM_BINS).double().index_add(0, bins, values)

    count = total(torch.ones_like(right))
    mean, accuracy = ((total(v) / count).numpy() for v in (confidence.double(), right))
    return mean, accuracy, count.long().numpy()


@register_metric("calibration", ("ece", "calibrated_ece", "temperature"))
@dataclass
class Calibration(Metric):
    """Expected calibration error of the scores, and at the temperature learned on validation."""

    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        numbers = {"ece": calibration_error(model, split)}
        if model.temperature is not None:
            numbers["calibrated_ece"] = calibration_error(model, split, calibrated=True)
            numbers["temperature"] = model.temperature
        return numbers
