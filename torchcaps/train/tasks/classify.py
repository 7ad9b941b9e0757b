"""Classification, and a drawing of the labelled objects where the model has a decoder."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from torch import Tensor

from torchcaps.analysis.accuracy import Counter
from torchcaps.data import Batch, Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.losses import (
    binary_cross_entropy,
    cross_entropy,
    margin_loss,
    reconstruction_loss,
    spread_loss,
)
from torchcaps.models import Output
from torchcaps.train.tasks.base import Task, TaskConfig, register_task


@dataclass(frozen=True)
class Classify(TaskConfig):
    loss: Literal["margin", "spread", "cross_entropy", "binary_cross_entropy"] = "margin"
    """The loss on class scores."""
    _: KW_ONLY
    margin: float = 0.9
    """The margin of the spread loss."""
    smoothing: float = 0.0
    """The share of a label that cross_entropy gives to all classes alike."""
    reconstruction: float = 0.0005
    """The weight of the sum of squared pixel errors, where the model has a decoder."""


@register_task("classify", Classify)
class ClassifyTask(Task):
    config: Classify
    metric = "accuracy"
    higher_is_better = True
    needs_labels = True
    mixes_labels = True

    def check(self, data: Dataset, cutmix: float) -> None:
        super().check(data, cutmix)
        if "logits" not in self.model.provides:
            raise TorchcapsError(f"This {self.model.config.family} has no classes to tell apart.")
        if cutmix and self.config.loss != "cross_entropy":
            raise TorchcapsError(
                "data.cutmix mixes labels, which only --task.loss cross_entropy takes."
            )
        if cutmix and self.draws:
            raise TorchcapsError(
                "data.cutmix mixes images, and a class capsule cannot draw a mixture: add "
                "--task.reconstruction 0."
            )

    @property
    def draws(self) -> bool:
        return self.config.reconstruction > 0 and "decode" in self.model.provides

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        output = self.model.encode(batch.images)
        loss = classification = self.classification(output, batch)
        parts = {"classification": classification}
        if self.draws and output.capsules is not None:
            drawn = self.model.decode(output.capsules, batch.labels)
            parts["reconstruction"] = drawing_loss(drawn, batch)
            loss = loss + self.config.reconstruction * parts["reconstruction"]
        return {"loss": loss, **parts}

    def classification(self, output: Output, batch: Batch) -> Tensor:
        spec, scores, labels = self.config, output.scores, batch.labels
        assert output.logits is not None
        if spec.loss == "cross_entropy":
            return cross_entropy(output.logits, labels, spec.smoothing, batch.pasted, batch.kept)
        if spec.loss == "binary_cross_entropy":
            claims = output.logits if scores is None else scores
            return binary_cross_entropy(claims, labels, probabilities=scores is not None)
        claims = output.logits.sigmoid() if scores is None else scores
        if spec.loss == "spread":
            return spread_loss(claims, labels, spec.margin)
        return margin_loss(claims, labels)

    @torch.no_grad()
    def evaluate(self, split: Split, batch_size: int = 500) -> dict[str, float]:
        """Accuracy over labelled images, and the classification loss."""
        counter = Counter(split)
        loss = torch.zeros((), device=split.images.device)
        for batch in split.batches(batch_size):
            output = self.model.encode(batch.images)
            counter.add(output, batch.labels)
            loss += self.classification(output, batch) * len(batch)
        accuracy, *exact = counter.numbers().items()
        return dict([accuracy, ("loss", float(loss) / len(split)), *exact])


def drawing_loss(drawn: Tensor, batch: Batch) -> Tensor:
    """Against the image; or each object's drawing against that object, where they overlap."""
    if drawn.ndim == 5 and batch.targets is not None:
        return reconstruction_loss(drawn, batch.targets, batch.labels >= 0)
    return reconstruction_loss(drawn, batch.images)
