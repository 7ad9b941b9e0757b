"""How many units of a class capsule react to one factor (`robustness`, section 3.3).

An image under several amounts of a transformation; the vector of its class each time (`units` says
what that is in a model without class capsules); the variance of each unit, divided by their sum;
its KL divergence from the uniform distribution. 0: all units react alike; log E: one unit alone
does. Sixteen units that differ by chance score about 0.4; the shares' mean over images, scored once
("pooled"), asks whether it is always the same units.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchcaps.analysis.figure import new_figure
from torchcaps.analysis.measures import Measure, register_measure
from torchcaps.analysis.robustness import Factor, Transform, transformed
from torchcaps.data import Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.models import CapsuleModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AMOUNTS: dict[Factor, tuple[float, ...]] = {
    "rotation": tuple(range(-20, 21, 5)),
    "shift_x": tuple(range(-4, 5)),
    "shift_y": tuple(range(-4, 5)),
    "scale": (0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2),
    "shear_x": (-0.2, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2),
    "shear_y": (-0.2, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2),
}
"""The ranges of affNIST, nine steps each; the paper prints none."""


def units(model: CapsuleModel, images: Tensor, labels: Tensor) -> Tensor:
    """What a model says of each image, as one vector. images [B,C,H,W], labels [B] -> [B,E]

    The capsule of the image's class; where capsules are not one a class, the model's usual
    representation; all units where they are not grouped by class.
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
    model: CapsuleModel,
    images: Tensor,
    transform: Transform = "rotation",
    amounts: Iterable[float] | None = None,
    labels: Tensor | None = None,
) -> np.ndarray:
    """Each unit's share of what the transformation moves. images [B,C,H,W] -> [B,E]"""
    model.eval()
    if amounts is None:
        if callable(transform):
            raise TorchcapsError("A transformation of one's own needs its `amounts`.")
        amounts = AMOUNTS[transform]
    if labels is None:
        logits = model.encode(images).logits
        labels = torch.zeros(len(images)).long() if logits is None else logits.argmax(-1)
    vectors = torch.stack(
        [units(model, transformed(images, transform, a), labels).float() for a in amounts]
    )
    variance = vectors.double().var(0)
    return (variance / variance.sum(-1, keepdim=True).clamp_min(1e-300)).cpu().numpy()


def from_uniform(shares: np.ndarray) -> np.ndarray:
    """KL divergence of shares from equal ones. [...,E] -> [...]"""
    return (shares * np.log((shares * shares.shape[-1]).clip(1e-300))).sum(-1)


def compactness(
    model: CapsuleModel,
    images: Tensor,
    transform: Transform = "rotation",
    amounts: Iterable[float] | None = None,
    labels: Tensor | None = None,
) -> np.ndarray:
    """The score of every image. images [B,C,H,W] in [0,1], labels [B] (or as predicted) -> [B]"""
    return from_uniform(variance_shares(model, images, transform, amounts, labels))


def compactness_numbers(model: CapsuleModel, split: Split) -> dict[str, float]:
    """The mean score of each factor's images, and the score of the images' mean shares."""
    numbers = {}
    for factor in AMOUNTS:
        parts = [
            variance_shares(model, batch.images, factor, labels=batch.labels)
            for batch in split.batches(500)
        ]
        shares = np.concatenate(parts)
        numbers[f"compactness_{factor}"] = float(from_uniform(shares).mean())
        numbers[f"compactness_pooled_{factor}"] = float(from_uniform(shares.mean(0)))
    return numbers


def draw_compactness(scores: dict[str, dict[str, float]]) -> "Figure":
    """A group of bars a factor, a bar a model. scores: model -> factor -> mean score"""
    figure = new_figure(8, 3.4)
    axes = figure.subplots()
    factors = list(next(iter(scores.values())))
    width = 0.8 / len(scores)
    for n, (name, values) in enumerate(scores.items()):
        places = [i + (n - (len(scores) - 1) / 2) * width for i in range(len(factors))]
        axes.bar(places, [values[f] for f in factors], width, label=name)
    axes.set_xticks(range(len(factors)), factors)
    axes.set(ylabel="compactness, nats")
    axes.legend(frameon=False)
    return figure


METRICS = [f"compactness{kind}_{factor}" for factor in AMOUNTS for kind in ("", "_pooled")]


@register_measure("compactness", METRICS)
@dataclass
class Compactness(Measure):
    """How few units of a class capsule react to each of six factors: by image, and pooled."""

    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        return compactness_numbers(model, split)
