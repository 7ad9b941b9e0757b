"""What a step minimises and what an evaluation counts: the only part of the loop that knows a task.

A new task is an entry in OBJECTIVES: its loss, its evaluation, and the number that chooses a model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from torchcaps.data import Batch, Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.losses import (
    binary_cross_entropy,
    cross_entropy,
    margin_loss,
    multi_hot,
    reconstruction_loss,
    spread_loss,
)
from torchcaps.models import Output
from torchcaps.train.masked import evaluate_masked, masked_loss, picture, probe
from torchcaps.train.recipe import LossSpec


def classify(model: nn.Module, batch: Batch, spec: LossSpec) -> dict[str, Tensor]:
    """Classification, and a drawing of the labelled objects where the model has a decoder."""
    output: Output = model(batch.images, batch.labels, reconstruct=spec.reconstruction > 0)
    loss = classification = classification_loss(output, batch, spec)
    parts = {"classification": classification}
    if output.reconstruction is not None:
        parts["reconstruction"] = drawing_loss(output.reconstruction, batch)
        loss = loss + spec.reconstruction * parts["reconstruction"]
    return {"loss": loss, **parts}


def reconstruct(model: nn.Module, batch: Batch, spec: LossSpec) -> dict[str, Tensor]:
    """Draw the image again, without a label."""
    output: Output = model(batch.images)
    if output.reconstruction is None:
        raise TorchcapsError("The objective 'reconstruct' needs a model with a decoder.")
    return {"loss": reconstruction_loss(output.reconstruction, batch.images)}


def classification_loss(output: Output, batch: Batch, spec: LossSpec) -> Tensor:
    lengths, labels = output.lengths, batch.labels
    if spec.kind == "cross_entropy":
        return cross_entropy(output.logits, labels, spec.smoothing, batch.pasted, batch.kept)
    if spec.kind == "binary_cross_entropy":
        scores = output.logits if lengths is None else lengths
        return binary_cross_entropy(scores, labels, probabilities=lengths is not None)
    scores = output.logits.sigmoid() if lengths is None else lengths
    if spec.kind == "spread":
        return spread_loss(scores, labels, spec.margin)
    return margin_loss(scores, labels)


def drawing_loss(drawn: Tensor, batch: Batch) -> Tensor:
    """Against the image; or each object's drawing against that object, where they overlap."""
    if drawn.ndim == 5 and batch.targets is not None:
        return reconstruction_loss(drawn, batch.targets, batch.labels >= 0)
    return reconstruction_loss(drawn, batch.images)


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Which images are right: the top class, or both of the top two. -> [B] bool"""
    if labels.ndim == 1:
        return logits.argmax(-1) == labels
    top = logits.topk(labels.shape[1], -1).indices
    counted = torch.arange(labels.shape[1], device=labels.device) < (labels >= 0).sum(
        1, keepdim=True
    )
    hit = (top[:, :, None] == labels[:, None, :]).any(-1)
    return (hit | ~counted).all(-1)


def exact(output: Output, labels: Tensor) -> Tensor:
    """Which images have exactly their labels above one half. labels [B,M] -> [B] bool"""
    claimed = output.logits.sigmoid() if output.lengths is None else output.lengths
    return ((claimed > 0.5) == (multi_hot(labels, claimed.shape[1]) > 0)).all(-1)


@torch.no_grad()
def evaluate_classes(
    model: nn.Module, split: Split, spec: LossSpec, batch_size: int = 500
) -> dict[str, float]:
    """Accuracy over labelled images and the classification loss; of several labels an image,
    whether all of them and no other were claimed.
    """
    device = split.images.device
    right, whole, total, loss = (torch.zeros((), device=device) for _ in range(4))
    for batch in split.batches(batch_size):
        output: Output = model(batch.images, reconstruct=False)
        labelled = batch.labels.reshape(len(batch), -1)[:, 0] >= 0
        right += (correct(output.logits, batch.labels) & labelled).sum()
        if batch.labels.ndim == 2:
            whole += (exact(output, batch.labels) & labelled).sum()
        total += labelled.sum()
        loss += classification_loss(output, batch, spec) * len(batch)
    count = max(1.0, float(total))
    found = {"accuracy": float(right) / count, "loss": float(loss) / len(split)}
    if split.labels.ndim == 2:
        found["exact_match"] = float(whole) / count
    return found


@torch.no_grad()
def evaluate_drawings(
    model: nn.Module, split: Split, spec: LossSpec, batch_size: int = 500
) -> dict[str, float]:
    loss = torch.zeros((), device=split.images.device)
    for batch in split.batches(batch_size):
        loss += reconstruct(model, batch, spec)["loss"] * len(batch)
    return {"loss": float(loss) / len(split)}


@dataclass(frozen=True)
class Objective:
    """A task."""

    loss: Callable[[nn.Module, Batch, LossSpec], dict[str, Tensor]]
    evaluate: Callable[..., dict[str, float]]
    metric: str
    """The validation number that chooses a model."""
    higher_is_better: bool
    picture: Callable[[nn.Module, Split, LossSpec, Path | None], None] | None = None
    """Draws what the model does, a few times in a run."""
    probe: Callable[[nn.Module, Dataset, Split], dict[str, float]] | None = None
    """What simple learners on frozen features of the training images make of a split."""

    def numbers(
        self, model: nn.Module, data: Dataset, split: Split, spec: LossSpec
    ) -> dict[str, float]:
        """The evaluation of a split of the data (or another set's), and the probes' beside it."""
        probed = self.probe(model, data, split) if self.probe else {}
        return self.evaluate(model, split, spec) | probed

    def better(self, new: float, old: float | None) -> bool:
        """Of equals the later one, which has trained longer."""
        return old is None or (new >= old if self.higher_is_better else new <= old)


OBJECTIVES = {
    "classify": Objective(classify, evaluate_classes, "accuracy", True),
    "reconstruct": Objective(reconstruct, evaluate_drawings, "loss", False),
    "masked": Objective(masked_loss, evaluate_masked, "loss", False, picture, probe),
}
