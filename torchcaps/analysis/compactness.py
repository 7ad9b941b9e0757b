"""How many units of a class capsule react to one factor (`robustness`, section 3.3).

An image under several amounts of a transformation; the vectors of its class; the variance of each
unit, divided by their sum; its KL divergence from the uniform distribution. 0: all units react
alike; log E: one unit alone does.
"""

from collections.abc import Iterable

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from torchcaps.analysis.robustness import Factor, transformed
from torchcaps.errors import TorchcapsError
from torchcaps.models import CapsuleModel

AMOUNTS: dict[Factor, tuple[float, ...]] = {
    "rotation": tuple(range(-20, 21, 5)),
    "shift_x": tuple(range(-4, 5)),
    "shift_y": tuple(range(-4, 5)),
    "scale": (0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2),
    "shear_x": (-0.2, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2),
    "shear_y": (-0.2, -0.15, -0.1, -0.05, 0.0, 0.05, 0.1, 0.15, 0.2),
}
"""The ranges of affNIST, nine steps each; the paper prints none."""


def class_vectors(model: CapsuleModel, images: Tensor, labels: Tensor) -> Tensor:
    """The units of each image's own class. images [B,C,H,W], labels [B] -> [B,E]"""
    capsules = model(images, reconstruct=False).capsules
    if capsules is None:
        raise TorchcapsError(f"{type(model).__name__} has no class capsules.")
    return capsules[torch.arange(len(labels), device=labels.device), labels]


@torch.no_grad()
def compactness(
    model: CapsuleModel,
    images: Tensor,
    labels: Tensor,
    factor: Factor = "rotation",
    amounts: Iterable[float] | None = None,
) -> np.ndarray:
    """The score of every image. images [B,C,H,W] in [0,1], labels [B] -> [B]"""
    model.eval()
    amounts = AMOUNTS[factor] if amounts is None else tuple(amounts)
    vectors = torch.stack(
        [class_vectors(model, transformed(images, factor, a), labels).float() for a in amounts]
    )
    variance = vectors.double().var(0)
    share = variance / variance.sum(-1, keepdim=True).clamp_min(1e-300)
    kl = (share * (share * share.shape[-1]).clamp_min(1e-300).log()).sum(-1)
    return kl.cpu().numpy()


def draw_compactness(scores: dict[str, dict[str, float]]) -> Figure:
    """A group of bars a factor, a bar a model. scores: model -> factor -> mean score"""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
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
