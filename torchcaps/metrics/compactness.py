"""Compactness: how few units of a class capsule react to one factor (`robustness`, section 3.3).

Transform an image by several amounts and take the vector of its class each time (`units` defines it
for models without class capsules). The score is the KL divergence of the units' shares of the
variance from the uniform distribution. 0: all units react alike; log E: only one unit reacts.
Sixteen units that differ by chance score about 0.4. The "pooled" score is that of the mean shares
over images; it is high where the same units react in every image.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchcaps.data import Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.metrics.base import Metric, register_metric
from torchcaps.metrics.robustness import Factor, Transform, transformed

if TYPE_CHECKING:
    from torchcaps.models import Model

AMOUNTS: dict[Factor, tuple[float, ...]] = {
    "rotation": tuple(range(-20, 21, 5)),
    "shift_x": tuple(range(-4, 5)),
    "shift_y": tuple(range(-4, 5)),
    "scale": (0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2),
    "shear_x": (-0.2, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2),
    "shear_y": (-0.2, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2),
}
"""The ranges of affNIST in nine steps each; the paper does not print its ranges."""


def units(model: "Model", images: Tensor, labels: Tensor) -> Tensor:
    """One vector for each image. images [B,C,H,W], labels [B] -> [B,E]

    The capsule of the image's class. Without one capsule per class: the model's first
    representation. For units that are not grouped by class: all units.
    """
    output = model.encode(images)
    capsules, logits = output.capsules, output.logits
    if capsules is not None and not getattr(model, "grouped", True):
        return capsules.flatten(1)
    if capsules is None or logits is None or capsules.shape[:2] != logits.shape:
        return next(iter(model.representations(images).values()))
    return capsules[torch.arange(len(labels), device=labels.device), labels]


@torch.no_grad()
def variance_shares(
    model: "Model",
    images: Tensor,
    transform: Transform = "rotation",
    amounts: Iterable[float] | None = None,
    labels: Tensor | None = None,
) -> np.ndarray:
    """Each unit's share of the variance under the transformation. images [B,C,H,W] -> [B,E]"""
    model.eval()
    if amounts is None:
        if callable(transform):
            raise TorchcapsError("A custom transformation needs `amounts`, such as (-1, 0, 1).")
        amounts = AMOUNTS[transform]
    if labels is None:
        logits = model.encode(images).logits
        labels = torch.zeros(len(images)).long() if logits is None else logits.argmax(-1)
    vectors = torch.stack(
        [units(model, transformed(images, transform, a), labels).float() for a in amounts]
    )
    variance = vectors.double().var(0)
    return (variance / variance.sum(-1, keepdim=True).clamp_min(1e-300)).cpu().numpy()


def kl_from_uniform(shares: np.ndarray) -> np.ndarray:
    """KL divergence of shares from the uniform distribution. [...,E] -> [...]"""
    return (shares * np.log((shares * shares.shape[-1]).clip(1e-300))).sum(-1)


def compactness(
    model: "Model",
    images: Tensor,
    transform: Transform = "rotation",
    amounts: Iterable[float] | None = None,
    labels: Tensor | None = None,
) -> np.ndarray:
    """Compactness of each image. images [B,C,H,W] in [0,1], labels [B] -> [B]

    labels: the classes whose capsules are scored; default: the predicted classes
    """
    return kl_from_uniform(variance_shares(model, images, transform, amounts, labels))


def compactness_numbers(model: "Model", split: Split) -> dict[str, float]:
    """Mean score over images and pooled score, for each factor."""
    numbers = {}
    for factor in AMOUNTS:
        shares = np.concatenate(
            [variance_shares(model, b.images, factor, labels=b.labels) for b in split.batches(500)]
        )
        numbers[f"compactness_{factor}"] = float(kl_from_uniform(shares).mean())
        numbers[f"compactness_pooled_{factor}"] = float(kl_from_uniform(shares.mean(0)))
    return numbers


NUMBERS = [f"compactness{kind}_{factor}" for factor in AMOUNTS for kind in ("", "_pooled")]


@register_metric("compactness", NUMBERS)
@dataclass
class Compactness(Metric):
    """Compactness of class capsules for each of six factors, per image and pooled."""

    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        return compactness_numbers(model, split)
