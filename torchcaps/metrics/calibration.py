"""Calibration: expected calibration error, and the reliability curve behind it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from torchcaps.data import Dataset, Split
from torchcaps.errors import require
from torchcaps.metrics.accuracy import claims
from torchcaps.metrics.base import Metric, register_metric

if TYPE_CHECKING:
    from torchcaps.models import Model

NUM_BINS = 15


def calibration_error(model: "Model", split: Split) -> float:
    """Mean distance between confidence and accuracy over 15 bins of confidence."""
    functional = require("torchmetrics.functional.classification", "analysis")
    predicted, labels = claims(model, split)
    error = functional.multiclass_calibration_error(
        predicted, labels, num_classes=predicted.shape[1], n_bins=NUM_BINS, validate_args=False
    )
    return float(error)


def reliability(model: "Model", split: Split) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """-> mean confidence, accuracy and number of images of each bin; empty bins are NaN."""
    predicted, labels = claims(model, split)
    confidence, classes = (t.cpu() for t in predicted.max(-1))
    right = (classes == labels.cpu()).double()
    bins = (confidence * NUM_BINS).long().clamp(max=NUM_BINS - 1)

    def total(values: torch.Tensor) -> torch.Tensor:
        return torch.zeros(NUM_BINS).double().index_add(0, bins, values)

    count = total(torch.ones_like(right))
    mean, accuracy = ((total(v) / count).numpy() for v in (confidence.double(), right))
    return mean, accuracy, count.long().numpy()


@register_metric("calibration", ("ece",))
@dataclass
class Calibration(Metric):
    """Expected calibration error."""

    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        return {"ece": calibration_error(model, split)}
