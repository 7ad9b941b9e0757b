"""Free-form inference: each image's own latent numbers, from where the encoder puts them.

refine     Adam on all of them, the bound as the objective
parents    objects in closed form, parts as they are: EM with one 3x3 solve an object

"""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.analysis.measures import register_measure
from torchcaps.analysis.probing import LogisticProbe, projected
from torchcaps.data import Dataset, Split
from torchcaps.layers.arrangement import Arrangement
from torchcaps.models import CapsuleModel
from torchcaps.models.generative import Generative
from torchcaps.models.process import Layer


def bounds(
    model: Generative, images: Tensor, layers: list[Layer], turns: Tensor | None = None
) -> Tensor:
    """The bound of each image at these latent numbers. -> [B]"""
    return torch.stack(list(model.bound_of(images, layers, turns=turns).terms.values())).sum(0)


def _layers(model: Generative, numbers: list[Tensor], stds: list[Tensor | None]) -> list[Layer]:
    pairs = zip(numbers[::2], numbers[1::2], stds, strict=True)
    tau = model.options.tau
    return [Layer(place, mean, std, place / tau, mean) for place, mean, std in pairs]


@torch.enable_grad()
def refine(
    model: Generative, images: Tensor, steps: int = 100, lr: float = 0.01
) -> tuple[list[Layer], Tensor]:
    """Latent numbers after so many steps of Adam, of each image the best that were seen.

    -> layers, and the bound of each image before every step and after the last [steps+1,B]
    """
    model.eval()
    with torch.no_grad():
        start = model.infer(images)
    stds = [layer.std for layer in start]
    numbers = [t.clone().requires_grad_() for layer in start for t in (layer.location, layer.mean)]
    search = torch.optim.Adam(numbers, lr)
    best = [t.detach().clone() for t in numbers]
    record = torch.full((len(images),), -torch.inf, device=images.device)
    curve = []
    for step in range(steps + 1):
        found = bounds(model, images, _layers(model, numbers, stds))
        curve.append(found.detach())
        better = curve[-1] > record
        record = torch.where(better, curve[-1], record)
        for kept, now in zip(best, numbers, strict=True):
            shape = (-1, *[1] * (now.dim() - 1))
            kept.copy_(torch.where(better.view(shape), now.detach(), kept))
        if step < steps:
            # with one object on, what its presence would have said is not asked
            gradients = torch.autograd.grad(-found.sum(), numbers, allow_unused=True)
            for number, gradient in zip(numbers, gradients, strict=True):
                number.grad = gradient
            search.step()
    return _layers(model, best, stds), torch.stack(curve)


@torch.no_grad()
def parents(model: Generative, layers: list[Layer], iterations: int = 5) -> list[Layer]:
    """The lowest objects' poses in closed form, by turns with the posterior over selections."""
    low, high, *rest = layers
    arrangement = model.process.arrangements[-1]
    assert isinstance(arrangement, Arrangement)
    for _ in range(iterations):
        said = arrangement(high.logits, high.poses, low.logits, low.poses)
        on = arrangement.on_shares(high.poses, low.logits, low.poses)
        shares = said.softmax(-1)[..., 1:] * on
        poses = arrangement.best_poses(shares, low.poses, model.options.pose_std)
        high = high._replace(mean=poses, poses=poses)
    return [low, high, *rest]


@register_measure("free-form", ("free_form_accuracy", "free_form_gain", "free_form_ms"))
@dataclass
class FreeForm(LogisticProbe):
    """A probe on what the encoder says, scored on what free-form inference makes of it: accuracy,
    how much the bound gained, milliseconds an image.
    """

    needs = ("parts",)
    steps: int = 100
    """Steps of Adam for each image."""
    lr: float = 0.01
    """The rate of these steps."""

    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        assert isinstance(model, Generative)
        split = split[slice(len(split) - self.scored, None)] if self.scored else split
        right = gain = 0.0
        began = time.perf_counter()
        for number, batch in enumerate(split.batches(500)):
            self.tell("free-form", 500 * number, len(split))
            layers, curve = refine(model, batch.images, self.steps, self.lr)
            gain += float((curve.amax(0) - curve[0]).sum())
            features = model.said(batch.images, layers)[self.features or "t0"].float()
            said = self.learned.predict(projected(features, self.components))
            right += float((said == batch.labels).sum())
        spent = 1000 * (time.perf_counter() - began)
        return dict(zip(self.metrics, (n / len(split) for n in (right, gain, spent)), strict=True))
