"""Classification, with a reconstruction of the labeled objects if the model has a decoder."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchcaps.data import Batch, Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.losses import (
    binary_cross_entropy,
    cross_entropy,
    margin_loss,
    reconstruction_loss,
    spread_loss,
)
from torchcaps.metrics.accuracy import Counter
from torchcaps.models import Model, Output
from torchcaps.training.task import Task, TaskConfig, register_task


@dataclass(frozen=True, kw_only=True)
class Classify(TaskConfig):
    loss: Literal["margin", "spread", "cross_entropy", "binary_cross_entropy"] = "margin"
    """The loss on class scores."""
    margin: float = 0.9
    """The margin of the spread loss."""
    smoothing: float = 0.0
    """The share of a label that cross_entropy gives to all classes alike."""
    reconstruction: float = 0.0005
    """The weight of the sum of squared errors of pixels, or of standardized features, if the model
    has a decoder."""
    class_weights: tuple[float, ...] = ()
    """Weights of the classes in the loss, in their order; empty: all alike."""


@register_task("classify", Classify)
class ClassifyTask(Task):
    config: Classify
    metric = "accuracy"
    higher_is_better = True
    needs = ("logits",)
    example = "capsnet"
    needs_labels = True
    mixes_labels = True

    class_weights: Tensor | None

    def __init__(self, model: Model, config: Classify):
        super().__init__(model, config)
        weights = torch.tensor(config.class_weights) if config.class_weights else None
        self.register_buffer("class_weights", weights, persistent=False)

    def check(self, data: Dataset, cutmix: float) -> None:
        super().check(data, cutmix)
        if weights := self.config.class_weights:
            if len(weights) != data.num_classes or data.train.labels.ndim != 1:
                raise TorchcapsError(
                    f"{len(weights)} class weights, but {data.name} has {data.num_classes} classes "
                    "with one label an image."
                )
            if not all(0 <= w < float("inf") for w in weights) or not any(weights):
                raise TorchcapsError("Class weights are finite and not negative.")
        if cutmix and self.config.loss != "cross_entropy":
            raise TorchcapsError(
                "data.cutmix mixes labels, which only --task.loss cross_entropy takes."
            )
        if cutmix and self.reconstructs:
            raise TorchcapsError(
                "data.cutmix mixes images, and a class capsule cannot reconstruct a mixture: add "
                "--task.reconstruction 0."
            )

    @property
    def reconstructs(self) -> bool:
        decoders = self.model.provides & {"decode", "feature-decoder"}
        return self.config.reconstruction > 0 and bool(decoders)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        output = self.model.encode(batch.images)
        loss = classification = self.classification(output, batch)
        terms = {"classification": classification}
        if self.reconstructs and output.capsules is not None:
            terms["reconstruction"] = self.reconstruction(output, output.capsules, batch)
            loss = loss + self.config.reconstruction * terms["reconstruction"]
        return {"loss": loss, **terms}

    def reconstruction(self, output: Output, poses: Tensor, batch: Batch) -> Tensor:
        if "feature-decoder" in self.model.provides:
            errors = self.model.feature_errors(output, batch.labels)
            return errors.flatten(1).sum(1).mean()
        return reconstruction_error(self.model.decode(poses, batch.labels), batch)

    def classification(self, output: Output, batch: Batch) -> Tensor:
        spec, scores, labels = self.config, output.scores, batch.labels
        weights = None
        if self.class_weights is not None:
            weights = self.class_weights[labels.clamp(min=0)] * (labels >= 0)
        assert output.logits is not None
        if spec.loss == "cross_entropy":
            mixed = batch.pasted, batch.kept
            return cross_entropy(output.logits, labels, spec.smoothing, *mixed, weights)
        if spec.loss == "binary_cross_entropy":
            claims = output.logits if scores is None else scores
            return binary_cross_entropy(
                claims, labels, probabilities=scores is not None, weights=weights
            )
        claims = output.logits.sigmoid() if scores is None else scores
        if spec.loss == "spread":
            return spread_loss(claims, labels, spec.margin, weights)
        return margin_loss(claims, labels, weights=weights)

    @torch.no_grad()
    def evaluate(self, split: Split, batch_size: int = 500) -> dict[str, float]:
        """Accuracy over labelled images, and the classification loss."""
        counter = Counter(split)
        loss = torch.zeros((), device=split.images.device)
        for batch in self.model.with_features(split).batches(batch_size):
            output = self.model.encode(batch.images)
            counter.add(output, batch.labels)
            loss += self.classification(output, batch) * len(batch)
        accuracy, *exact = counter.numbers().items()
        return dict([accuracy, ("loss", float(loss) / len(split)), *exact])


def reconstruction_error(reconstruction: Tensor, batch: Batch) -> Tensor:
    """The error against the image, or of each object against its own image if they overlap."""
    if reconstruction.ndim == 5 and batch.targets is not None:
        return reconstruction_loss(reconstruction, batch.targets, batch.labels >= 0)
    return reconstruction_loss(reconstruction, batch.images)
