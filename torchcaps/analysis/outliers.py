"""Images of another kind: by what the decoder cannot draw, and by low confidence."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from torchcaps.analysis.accuracy import outputs, probabilities
from torchcaps.analysis.measures import Measure, register_measure
from torchcaps.data import Dataset, Split
from torchcaps.data import load as load_data
from torchcaps.errors import TorchcapsError, require
from torchcaps.models import CapsuleModel

Score = Literal["reconstruction", "confidence"]


def drawing_error(model: CapsuleModel, images: Tensor) -> Tensor:
    """Squared pixel error of what the likeliest class draws. images [B,C,H,W] -> [B]"""
    drawn = model(images).reconstruction
    if drawn is None:
        raise TorchcapsError(f"{type(model).__name__} with this configuration has no decoder.")
    return (drawn.float() - images).square().flatten(1).sum(1)


@torch.no_grad()
def strangeness(
    model: CapsuleModel, split: Split, score: Score = "reconstruction", batch_size: int = 500
) -> Tensor:
    """How little each image looks like the training data. -> [N]"""
    model.eval()
    if score == "reconstruction":
        return torch.cat([drawing_error(model, b.images) for b in split.batches(batch_size)])
    return torch.cat([1 - probabilities(o).amax(-1) for _, o in outputs(model, split, batch_size)])


def outlier_auroc(
    model: CapsuleModel, inside: Split, outside: Split, score: Score = "reconstruction"
) -> float:
    """Chance that an outside image is stranger than an inside one: 0.5 is a coin, 1 is perfect."""
    functional = require("torchmetrics.functional.classification", "analysis")
    values = torch.cat([strangeness(model, inside, score), strangeness(model, outside, score)])
    is_outside = torch.arange(len(values), device=values.device) >= len(inside)
    # Only the order counts; torchmetrics would put unbounded scores through a sigmoid.
    levels = torch.unique(values, return_inverse=True)[1]
    ranks = levels.double() / (levels.max() + 1)
    return float(functional.binary_auroc(ranks, is_outside.long()))


@register_measure("outliers", ("ood_confidence", "ood_reconstruction"))
@dataclass
class Outliers(Measure):
    """AUROC against images of another kind: clothes, or digits where the images are clothes."""

    single_labels = False

    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        other = "mnist" if "fashion" in data.name else "fashion-mnist"
        head, _, rest = data.name.partition(":")
        outside = load_data(f"{head}:{other}" if rest else other, self.context.root, seed=0)
        if outside.image_shape != data.image_shape:
            raise TorchcapsError(
                f"{data.name}: there is no set of clothes or digits of its image size."
            )
        strange = outside.test.to(split.images.device)
        numbers = {"ood_confidence": outlier_auroc(model, split, strange, "confidence")}
        if "decode" in model.provides:
            numbers["ood_reconstruction"] = outlier_auroc(model, split, strange)
        return numbers


@register_measure("reconstruction", ("sse",))
@dataclass
class Reconstruction(Measure):
    """The sum of squared errors of an image that is drawn again."""

    needs = ("redraw",)
    single_labels = False

    @torch.no_grad()
    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        model.eval()
        errors = [drawing_error(model, b.images) for b in split.batches(500)]
        return {"sse": float(torch.cat(errors).mean())}
