"""Accuracy on adversarial images, and detection by reconstruction error (through foolbox)."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from torchcaps.data import Dataset, Split
from torchcaps.errors import require
from torchcaps.metrics.accuracy import logits_of
from torchcaps.metrics.base import Metric, register_metric
from torchcaps.metrics.outliers import reconstruction_error
from torchcaps.metrics.probes.metric import SVMProbe, projected, representation

if TYPE_CHECKING:
    from torchcaps.models import Model

Kind = Literal["fgsm", "pgd"]
STEPS = 40
"""Number of PGD steps from a random start, each of a 30th of epsilon."""


Scores = Callable[[Tensor], Tensor]
"""Differentiable class scores [B,Y] of images; the attack follows their gradient."""


class _Victim(nn.Module):
    def __init__(self, model: "Model", scores: Scores | None):
        super().__init__()
        self.model, self.scores = model, scores

    def forward(self, images: Tensor) -> Tensor:
        if self.scores is not None:
            return self.scores(images)
        return logits_of(self.model.encode(images)).float()


def _foolbox() -> Any:
    with warnings.catch_warnings():  # foolbox imports a name that scipy has deprecated
        warnings.simplefilter("ignore", DeprecationWarning)
        return require("foolbox", "analysis")


def perturb(
    model: "Model",
    images: Tensor,
    labels: Tensor,
    kind: Kind = "pgd",
    epsilon: float = 0.1,
    scores: Scores | None = None,
) -> Tensor:
    """Change each pixel by at most epsilon so that the model misclassifies the image if possible.

    images [B,C,H,W] in [0,1], labels [B] -> [B,C,H,W]; scores: those of a probe on the model,
    instead of the model's logits
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
def _correct(model: "Model", images: Tensor, labels: Tensor) -> Tensor:
    return logits_of(model.encode(images)).argmax(-1) == labels


@dataclass(frozen=True)
class Detection:
    """Accuracy under attack when badly reconstructed images are rejected."""

    accuracy: float
    """Accuracy under attack, without a detector."""
    guarded: float
    """Fraction of attacked images that are classified correctly or rejected."""
    threshold: float
    """Reconstruction error above which an image is rejected."""


def detect(
    model: "Model",
    images: Tensor,
    labels: Tensor,
    clean: Tensor,
    kind: Kind = "pgd",
    epsilon: float = 0.1,
    false_alarms: float = 0.05,
) -> Detection:
    """Attack images and reject those with a large reconstruction error.

    The threshold rejects a fraction `false_alarms` of the `clean` images. The attacker does not
    know the detector.
    """
    perturbed = perturb(model, images, labels, kind, epsilon)
    right = _correct(model, perturbed, labels)
    with torch.no_grad():
        threshold = torch.quantile(reconstruction_error(model, clean), 1 - false_alarms)
        rejected = reconstruction_error(model, perturbed) > threshold
    accuracy, guarded = (float(t.float().mean()) for t in (right, right | rejected))
    return Detection(accuracy, guarded, float(threshold))


@register_metric("adversarial", ("fgsm_accuracy", "pgd_accuracy", "pgd_guarded"))
@dataclass
class Adversarial(Metric):
    """Accuracy under FGSM and PGD, and under PGD with the decoder as a detector."""

    epsilon: float = 0.1
    """Largest change of a pixel."""
    images: int = 1000
    """Number of attacked images, and of validation images that set the detector's threshold."""

    def counted(self, split: Split) -> int:
        return min(len(split), self.images)

    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        first = slice(0, self.images)
        test, val = split.batch(first), data.val.batch(first)
        perturbed = perturb(model, test.images, test.labels, "fgsm", self.epsilon)
        numbers = {"fgsm_accuracy": float(_correct(model, perturbed, test.labels).float().mean())}
        if "decode" in model.provides:
            detection = detect(model, test.images, test.labels, val.images, "pgd", self.epsilon)
            return numbers | {"pgd_accuracy": detection.accuracy, "pgd_guarded": detection.guarded}
        perturbed = perturb(model, test.images, test.labels, "pgd", self.epsilon)
        right = _correct(model, perturbed, test.labels)
        return numbers | {"pgd_accuracy": float(right.float().mean())}


@register_metric("svm-adversarial", ("svm_fgsm_accuracy", "svm_pgd_accuracy"))
@dataclass
class AttackedSVM(SVMProbe):
    """Accuracy of a support vector machine on a representation, under FGSM and PGD.

    The attack follows the gradient of the machine's decisions through the model to the pixels.
    """

    epsilon: float = 0.1
    """Largest change of a pixel."""
    images: int = 1000
    """Number of attacked images."""

    def counted(self, split: Split) -> int:
        return min(super().counted(split), self.images)

    @torch.enable_grad()
    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        machine = self.learned.to(split.images.device)
        batch = split.batch(slice(len(split) - self.counted(split), None))

        def features(images: Tensor) -> Tensor:
            return projected(representation(model, images, self.features), self.components)

        def scores(images: Tensor) -> Tensor:
            return machine.scores(features(images))

        numbers = {}
        for kind, metric in zip(("fgsm", "pgd"), self.values, strict=True):
            perturbed = perturb(model, batch.images, batch.labels, kind, self.epsilon, scores)
            with torch.no_grad():
                numbers[metric] = machine.score(features(perturbed), batch.labels)
        return numbers
