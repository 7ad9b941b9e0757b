"""Is a model as often right as it says? Expected calibration error, and the curve behind it."""

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from torchcaps.data import Split
from torchcaps.errors import TorchcapsError, require
from torchcaps.models import CapsuleModel, Output

NUM_BINS = 15


def probabilities(output: Output) -> Tensor:
    """What a model claims of each class: lengths where it has them, else a softmax. -> [B,Y]

    Lengths that nothing squashed are scaled down to one at most.
    """
    if output.lengths is not None:
        lengths = output.lengths.float()
        return lengths / lengths.amax(-1, keepdim=True).clamp(min=1)
    return output.logits.float().softmax(-1)


@torch.no_grad()
def claims(model: CapsuleModel, split: Split, batch_size: int = 500) -> tuple[Tensor, Tensor]:
    """Of the labelled images. -> probabilities [N,Y], labels [N]"""
    model.eval()
    labelled = split.labels.reshape(len(split.labels), -1)[:, 0] >= 0
    if not labelled.any():
        raise TorchcapsError("None of these images has a label, so nothing can be right or wrong.")
    found = [
        (probabilities(model(b.images, reconstruct=False)), b.labels)
        for b in split[labelled].batches(batch_size)
    ]
    return torch.cat([p for p, _ in found]), torch.cat([y for _, y in found])


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


def draw_reliability(curves: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Figure:
    """Accuracy against confidence, a line a model; the diagonal is a model that knows itself."""
    figure = Figure(figsize=(4.2, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
    for name, (mean, accuracy, _) in curves.items():
        axes.plot(mean, accuracy, marker="o", markersize=4, label=name)
    axes.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1.02), ylim=(0, 1.02))
    axes.legend(frameon=False)
    return figure
