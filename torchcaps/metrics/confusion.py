"""Accuracy by class, the confusion matrix, and the most confident mistakes."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchcaps.data import Dataset, Split
from torchcaps.metrics.accuracy import claims, confusion, labeled

if TYPE_CHECKING:
    from torchcaps.models import Model

MAX_MISTAKES = 8


def by_class(model: "Model", split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy of each class (NaN without images), and its number of images. -> [Y], [Y]"""
    table = confusion(*claims(model, split))
    count = table.sum(1)
    return np.where(count, table.diagonal() / count.clip(1), np.nan), count


def worst_mistakes(model: "Model", split: Split, count: int) -> dict[str, np.ndarray]:
    """The wrong images with the most confidence.

    -> images [N,C,H,W], labels, predicted, confidence, file [N] (its number, -1: not from a file)
    """
    probabilities, labels = claims(model, split, calibrated=True)
    confidence, predicted = probabilities.max(-1)
    wrong = (predicted != labels).nonzero()[:, 0]
    rows = wrong[confidence[wrong].argsort(descending=True, stable=True)[:count]]
    chosen = labeled(split)[rows]
    tensors = {
        "images": chosen.batch(slice(None)).images,
        "file": chosen.factors.get("file", torch.full_like(rows, -1)),
        "labels": labels[rows],
        "predicted": predicted[rows],
        "confidence": confidence[rows],
    }
    return {name: t.cpu().numpy() for name, t in tensors.items()}


def summary(model: "Model", split: Split, data: Dataset) -> dict[str, Any]:
    """Accuracy by class, the confusion matrix and the worst mistakes, as plain values."""
    classes = data.classes
    table = confusion(*claims(model, split))
    count = table.sum(1)
    worst = worst_mistakes(model, split, MAX_MISTAKES)
    return {
        "classes": [
            {"name": name, "n": int(n), "accuracy": float(right / n) if n else None}
            for name, n, right in zip(classes, count, table.diagonal(), strict=True)
        ],
        "confusion": table.tolist(),
        "mistakes": [
            {"label": classes[label], "said": classes[predicted], "confidence": float(sure),
             "file": data.file_of(int(file))}
            for label, predicted, sure, file in zip(
                *(worst[name] for name in ("labels", "predicted", "confidence", "file")),
                strict=True,
            )
        ],
    }  # fmt: skip
