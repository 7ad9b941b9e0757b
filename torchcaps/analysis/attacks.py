"""Accuracy on images that an attacker moved, and whether the decoder notices (through foolbox)."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from torchcaps.analysis.accuracy import logits_of
from torchcaps.analysis.figure import line_plot
from torchcaps.analysis.measures import Measure, register_measure
from torchcaps.analysis.outliers import drawing_error
from torchcaps.analysis.probing import SVMProbe, projected, representation
from torchcaps.data import Dataset, Split
from torchcaps.errors import require
from torchcaps.models import CapsuleModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["fgsm", "pgd"]
EPSILONS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3)
STEPS = 40
"""Steps of PGD, each of a 30th of epsilon, from a random start."""


Scores = Callable[[Tensor], Tensor]
"""Scores [B,Y] of images, with a gradient: what an attacker climbs."""


class _Victim(nn.Module):
    def __init__(self, model: CapsuleModel, scores: Scores | None):
        super().__init__()
        self.model, self.scores = model, scores

    def forward(self, images: Tensor) -> Tensor:
        if self.scores is not None:
            return self.scores(images)
        return logits_of(self.model.encode(images)).float()


def _foolbox() -> Any:
    with warnings.catch_warnings():  # it imports from a name that scipy is about to drop
        warnings.simplefilter("ignore", DeprecationWarning)
        return require("foolbox", "analysis")


def attacked(
    model: CapsuleModel,
    images: Tensor,
    labels: Tensor,
    kind: Kind = "pgd",
    epsilon: float = 0.1,
    scores: Scores | None = None,
) -> Tensor:
    """Images that differ by at most epsilon a pixel and are classed wrong where that is found.

    images [B,C,H,W] in [0,1], labels [B] -> [B,C,H,W]; scores: of a probe on the model, in place of
    the model's logits
    """
    foolbox = _foolbox()
    model.eval()
    attack = foolbox.attacks.FGSM() if kind == "fgsm" else foolbox.attacks.LinfPGD(
        rel_stepsize=1 / 30, steps=STEPS
    )  # fmt: skip
    module = _Victim(model, scores).eval()
    victim = foolbox.PyTorchModel(module, bounds=(0, 1), device=images.device)
    return attack(victim, images, labels, epsilons=epsilon)[1].detach()


@torch.no_grad()
def _right(model: CapsuleModel, images: Tensor, labels: Tensor) -> Tensor:
    return logits_of(model.encode(images)).argmax(-1) == labels


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
    """Accuracy under attack, without a detector."""
    guarded: float
    """The share of attacked images that are classed right or turned away."""
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


def draw_accuracy_under_attack(curves: dict[str, tuple[np.ndarray, np.ndarray]]) -> "Figure":
    lines = {name: (epsilons, 100 * accuracy) for name, (epsilons, accuracy) in curves.items()}
    return line_plot(lines, "largest change of a pixel", "test accuracy, %", ylim=(0, 101))


@register_measure("adversarial", ("fgsm_accuracy", "pgd_accuracy", "pgd_guarded"))
@dataclass
class Adversarial(Measure):
    """Accuracy under FGSM and PGD, and under PGD with the decoder as a detector."""

    epsilon: float = 0.1
    """The largest change of a pixel."""
    images: int = 1000
    """Images that are attacked, and validation images that set the detector's threshold."""

    def counted(self, split: Split) -> int:
        return min(len(split), self.images)

    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        first = slice(0, self.images)
        test, val = split.batch(first), data.val.batch(first)
        moved = attacked(model, test.images, test.labels, "fgsm", self.epsilon)
        numbers = {"fgsm_accuracy": float(_right(model, moved, test.labels).float().mean())}
        if "decode" in model.provides:
            found = detected(model, test.images, test.labels, val.images, "pgd", self.epsilon)
            return numbers | {"pgd_accuracy": found.accuracy, "pgd_guarded": found.guarded}
        moved = attacked(model, test.images, test.labels, "pgd", self.epsilon)
        right = _right(model, moved, test.labels)
        return numbers | {"pgd_accuracy": float(right.float().mean())}


@register_measure("svm-adversarial", ("svm_fgsm_accuracy", "svm_pgd_accuracy"))
@dataclass
class AttackedSVM(SVMProbe):
    """Accuracy of a support vector machine on a representation, under FGSM and PGD.

    The attacker follows the machine's decisions back through the model, to the pixels.
    """

    epsilon: float = 0.1
    """The largest change of a pixel."""
    images: int = 1000
    """Images that are attacked."""

    def counted(self, split: Split) -> int:
        return min(super().counted(split), self.images)

    @torch.enable_grad()
    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        machine = self.learned.to(split.images.device)
        batch = split.batch(slice(len(split) - self.counted(split), None))

        def seen(images: Tensor) -> Tensor:
            return projected(representation(model, images, self.features), self.components)

        found = {}
        for kind, metric in zip(("fgsm", "pgd"), self.metrics, strict=True):
            moved = attacked(
                model, batch.images, batch.labels, kind, self.epsilon,
                lambda images: machine.scores(seen(images)),
            )  # fmt: skip
            with torch.no_grad():
                found[metric] = machine.score(seen(moved), batch.labels)
        return found
