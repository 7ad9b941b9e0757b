"""Accuracy on images that an attacker moved, and whether the decoder notices (through foolbox)."""

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from torchcaps.analysis.outliers import drawing_error
from torchcaps.errors import require
from torchcaps.models import CapsuleModel

Kind = Literal["fgsm", "pgd"]
EPSILONS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3)
STEPS = 40
"""Of PGD, each of a 30th of epsilon, from a random start."""


class _Logits(nn.Module):
    def __init__(self, model: CapsuleModel):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images, reconstruct=False).logits.float()


def _foolbox() -> Any:
    with warnings.catch_warnings():  # it imports from a name that scipy is about to drop
        warnings.simplefilter("ignore", DeprecationWarning)
        return require("foolbox", "analysis")


def attacked(
    model: CapsuleModel, images: Tensor, labels: Tensor, kind: Kind = "pgd", epsilon: float = 0.1
) -> Tensor:
    """Images that differ by at most epsilon a pixel and are classed wrong where that is found.

    images [B,C,H,W] in [0,1], labels [B] -> [B,C,H,W]
    """
    foolbox = _foolbox()
    model.eval()
    attack = foolbox.attacks.FGSM() if kind == "fgsm" else foolbox.attacks.LinfPGD(
        rel_stepsize=1 / 30, steps=STEPS
    )  # fmt: skip
    victim = foolbox.PyTorchModel(_Logits(model).eval(), bounds=(0, 1), device=images.device)
    return attack(victim, images, labels, epsilons=epsilon)[1].detach()


@torch.no_grad()
def _right(model: CapsuleModel, images: Tensor, labels: Tensor) -> Tensor:
    return model(images, reconstruct=False).logits.argmax(-1) == labels


def accuracy_under_attack(
    model: CapsuleModel,
    images: Tensor,
    labels: Tensor,
    kind: Kind = "pgd",
    epsilons: tuple[float, ...] = EPSILONS,
) -> tuple[np.ndarray, np.ndarray]:
    """-> (epsilons, accuracy at each)"""
    model.eval()
    found = []
    for epsilon in epsilons:
        moved = attacked(model, images, labels, kind, epsilon) if epsilon else images
        found.append(float(_right(model, moved, labels).float().mean()))
    return np.asarray(epsilons), np.asarray(found)


@dataclass(frozen=True)
class Detection:
    """What an attack is left with when badly drawn images are turned away."""

    accuracy: float
    """Under attack, without a detector."""
    guarded: float
    """Share of attacked images that are classed right or turned away."""
    threshold: float


def detected(
    model: CapsuleModel,
    images: Tensor,
    labels: Tensor,
    clean: Tensor,
    kind: Kind = "pgd",
    epsilon: float = 0.1,
    refused: float = 0.05,
) -> Detection:
    """The threshold is set on `clean` images, so that this share of them is turned away too.

    The attacker does not know of the detector.
    """
    moved = attacked(model, images, labels, kind, epsilon)
    right = _right(model, moved, labels)
    with torch.no_grad():
        threshold = torch.quantile(drawing_error(model, clean), 1 - refused)
        seen = drawing_error(model, moved) > threshold
    accuracy, guarded = (float(t.float().mean()) for t in (right, right | seen))
    return Detection(accuracy, guarded, float(threshold))


def draw_accuracy_under_attack(curves: dict[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for name, (epsilons, accuracy) in curves.items():
        axes.plot(epsilons, 100 * accuracy, marker="o", markersize=4, label=name)
    axes.set(xlabel="largest change of a pixel", ylabel="test accuracy, %", ylim=(0, 101))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure
