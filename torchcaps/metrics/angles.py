"""Test-time rotation: classify an image at several angles and keep the best prediction.

A network trained on upright images classifies an image at evenly spaced angles of a circle. The
most confident prediction (by probability, or by logit alone) can belong to a wrong angle: a
classifier does not know that a 7 lying on its side is not a 2. A model with a decoder can also be
checked by its reconstruction. The prediction with the largest value of

    log-odds of the class - weight * squared error of the reconstruction

is kept. The weight is chosen on the validation images, at the rotations that they have.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcaps.data import Dataset, Split
from torchcaps.layers.rotations import inverse, rotate, rotations
from torchcaps.metrics.accuracy import labeled, logits_of, probabilities
from torchcaps.metrics.base import Metric, register_metric

if TYPE_CHECKING:
    from torchcaps.models import Model, Output


WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Candidate weights, in units of one over the median error at the best angle."""


@dataclass
class Predictions:
    """Predictions for N images at each of F angles."""

    classes: Tensor
    """Predicted class [N,F]."""
    odds: Tensor
    """Log-odds of the predicted class [N,F]."""
    logits: Tensor
    """Largest logit, without regard to the other classes [N,F]."""
    errors: Tensor | None
    """Squared errors of the reconstructions [N,F]; None: the model has no decoder."""
    labels: Tensor
    """[N]"""

    def accuracy(self, weight: float = 0.0, by_logit: bool = False) -> float:
        """Accuracy of the prediction at each image's best angle."""
        score = self.logits if by_logit else self.odds
        if self.errors is not None and weight:
            score = score - weight * self.errors
        classes = self.classes.gather(1, score.argmax(1, keepdim=True))[:, 0]
        return float((classes == self.labels).double().mean())

    def best_weight(self) -> float:
        """The candidate weight with the highest accuracy."""
        assert self.errors is not None
        median = float(self.errors.amin(1).median())
        return max((w / median for w in WEIGHTS), key=self.accuracy)


def class_and_odds(output: "Output") -> tuple[Tensor, Tensor]:
    """Predicted class and its log-odds, each [B].

    For softmax outputs the log-odds come from logits, since many probabilities round to one.
    """
    if output.scores is not None:
        probability, classes = probabilities(output).max(1)
        return classes, probability.clamp(1e-6, 1 - 1e-6).logit()
    logits = logits_of(output).float()
    top, classes = logits.max(1)
    return classes, top - logits.scatter(1, classes[:, None], -torch.inf).logsumexp(1)


@torch.no_grad()
def predict_rotated(model: "Model", split: Split, frames: int = 16) -> Predictions:
    """Classify every labeled image at evenly spaced angles of a circle."""
    model.eval()
    decodes = "decode" in model.provides
    rows: list[tuple[Tensor, ...]] = []
    images = labeled(split)
    for batch in images.batches(500):
        columns = []
        for rotation in rotations(frames, batch.images):
            view = rotate(batch.images, inverse(rotation).expand(len(batch), 2, 3))
            output = model.encode(view)
            classes, odds = class_and_odds(output)
            column = [classes, odds, logits_of(output).float().amax(1)]
            if decodes and output.capsules is not None:
                decoded = model.decode(output.capsules, classes)
                column.append((decoded.float() - view).square().flatten(1).sum(1))
            columns.append(column)
        rows.append(tuple(torch.stack(values, 1) for values in zip(*columns, strict=True)))
    classes, odds, logits, *errors = (torch.cat(values) for values in zip(*rows, strict=True))
    return Predictions(classes, odds, logits, errors[0] if errors else None, images.labels)


@register_metric("angles", ("angles_confidence", "angles_logit", "angles_drawing"))
@dataclass
class Angles(Metric):
    """Accuracy with test-time rotation, by confidence, by logit and by reconstruction error."""

    frames: int = 16
    """Number of angles at which each image is classified."""

    def __post_init__(self):
        super().__post_init__()
        self.weight = 0.0

    def learn(self, model: "Model", data: Dataset) -> None:
        if "decode" in model.provides:
            self.weight = predict_rotated(model, data.val, self.frames).best_weight()

    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        predictions = predict_rotated(model, split, self.frames)
        numbers = {
            "angles_confidence": predictions.accuracy(),
            "angles_logit": predictions.accuracy(by_logit=True),
        }
        if predictions.errors is not None:
            numbers["angles_drawing"] = predictions.accuracy(self.weight)
        return numbers
