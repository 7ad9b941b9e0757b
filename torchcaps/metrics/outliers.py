"""Outlier detection by reconstruction error and by low confidence."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from torchcaps.data import Dataset, Split
from torchcaps.data import load as load_data
from torchcaps.errors import TorchcapsError, require
from torchcaps.metrics.accuracy import outputs, probabilities
from torchcaps.metrics.base import Metric, register_metric

if TYPE_CHECKING:
    from torchcaps.models import Model


Score = Literal["reconstruction", "confidence"]
SEEN = "classes=seen"
"""Option of data sets that leave classes out of training."""


def reconstruction_error(model: "Model", images: Tensor) -> Tensor:
    """Sum of squared pixel errors of the likeliest class's reconstruction. [B,C,H,W] -> [B]"""
    decoded = model(images).reconstruction
    if decoded is None:
        raise TorchcapsError(f"{type(model).__name__} with this configuration has no decoder.")
    return (decoded.float() - images).square().flatten(1).sum(1)


@torch.no_grad()
def outlier_scores(
    model: "Model", split: Split, score: Score = "reconstruction", batch_size: int = 500
) -> Tensor:
    """Outlier score of each image, larger for images unlike the training data. -> [N]"""
    model.eval()
    if score == "reconstruction":
        return torch.cat([reconstruction_error(model, b.images) for b in split.batches(batch_size)])
    return torch.cat([1 - probabilities(o).amax(-1) for _, o in outputs(model, split, batch_size)])


def outlier_auroc(
    model: "Model", inside: Split, outside: Split, score: Score = "reconstruction"
) -> float:
    """Probability that an outside image scores higher than an inside one; 0.5 is chance."""
    functional = require("torchmetrics.functional.classification", "analysis")
    values = torch.cat([outlier_scores(model, split, score) for split in (inside, outside)])
    is_outside = torch.arange(len(values), device=values.device) >= len(inside)
    # Pass ranks: torchmetrics would apply a sigmoid to values outside [0,1].
    levels = torch.unique(values, return_inverse=True)[1]
    ranks = levels.double() / (levels.max() + 1)
    return float(functional.binary_auroc(ranks, is_outside.long()))


@register_metric("outliers", ("ood_confidence", "ood_reconstruction"))
@dataclass
class Outliers(Metric):
    """AUROC against images of another data set: Fashion-MNIST, or MNIST for a set of clothes."""

    single_labels = False

    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        other = "mnist" if "fashion" in data.name else "fashion-mnist"
        head, _, rest = data.name.partition(":")
        outside = load_data(f"{head}:{other}" if rest else other, self.context.root, seed=0)
        if outside.image_shape != data.image_shape:
            raise TorchcapsError(
                f"outliers: images of {data.name} are {data.image_shape}, but those of {other} "
                f"are {outside.image_shape}; use data of the same image size."
            )
        outliers = outside.test.to(split.images.device)
        numbers = {"ood_confidence": outlier_auroc(model, split, outliers, "confidence")}
        if "decode" in model.provides:
            numbers["ood_reconstruction"] = outlier_auroc(model, split, outliers)
        return numbers


@register_metric("unseen", ("unseen_confidence",))
@dataclass
class Unseen(Metric):
    """AUROC of low confidence against classes that training left out (data with classes=seen)."""

    def check(self, model: "Model", data: Dataset) -> None:
        if SEEN not in self.context.label:
            raise TorchcapsError(
                f"unseen needs data with {SEEN}, such as fruits-views:half,{SEEN}, not "
                f"{self.context.label}."
            )

    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        name = self.context.label.replace(SEEN, "classes=unseen")
        outside = load_data(name, self.context.root, seed=0).test.to(split.images.device)
        return {"unseen_confidence": outlier_auroc(model, split, outside, "confidence")}


@register_metric("reconstruction", ("sse",))
@dataclass
class Reconstruction(Metric):
    """Mean over images of the sum of squared reconstruction errors."""

    needs = ("reconstruct",)
    single_labels = False

    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        return {"sse": float(outlier_scores(model, split).mean())}
