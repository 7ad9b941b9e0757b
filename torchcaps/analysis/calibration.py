"""Is a model as often right as it says? Expected calibration error, and the curve behind it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from torchcaps.analysis.accuracy import claims
from torchcaps.analysis.figure import line_plot
from torchcaps.analysis.measures import Measure, register_measure
from torchcaps.data import Dataset, Split
from torchcaps.errors import require
from torchcaps.models import CapsuleModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_BINS = 15


def calibration_error(model: CapsuleModel, split: Split) -> float:
    """Mean distance between confidence and accuracy over 15 bins of confidence."""
    functional = require("torchmetrics.functional.classification", "analysis")
    claimed, labels = claims(model, split)
    error = functional.multiclass_calibration_error(
        claimed, labels, num_classes=claimed.shape[1], n_bins=NUM_BINS, validate_args=False
    )
    return float(error)


def reliability(model: CapsuleModel, split: Split) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """-> mean confidence, accuracy and number of images of each bin; empty bins are NaN."""
    claimed, labels = claims(model, split)
    confidence, chosen = (t.cpu() for t in claimed.max(-1))
    right = (chosen == labels.cpu()).double()
    bins = (confidence * NUM_BINS).long().clamp(max=NUM_BINS - 1)
    count = torch.zeros(NUM_BINS).double().index_add(0, bins, torch.ones_like(right))
    sums = [
        torch.zeros(NUM_BINS).double().index_add(0, bins, v) for v in (confidence.double(), right)
    ]
    mean, accuracy = ((s / count).numpy() for s in sums)
    return mean, accuracy, count.long().numpy()


def draw_reliability(curves: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]) -> "Figure":
    """Accuracy against confidence, a line a model; the diagonal is a model that knows itself."""
    lines = {name: (mean, accuracy) for name, (mean, accuracy, _) in curves.items()}
    figure = line_plot(lines, "confidence", "accuracy", xlim=(0, 1.02), ylim=(0, 1.02))
    figure.axes[0].plot([0, 1], [0, 1], color="0.7", linewidth=1, zorder=0)
    return figure


@register_measure("calibration", ("ece",))
@dataclass
class Calibration(Measure):
    """Expected calibration error."""

    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        return {"ece": calibration_error(model, split)}
