"""Free-form inference: each image's own latent numbers, from where the encoder puts them.

refine     a search for a better bound (analysis/search.py), if asked from several turned
           starts, and with blurred templates at first
parents    objects in closed form, parts as they are: EM with one 3x3 solve an object
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.analysis.drawings import Line, Lines
from torchcaps.analysis.measures import register_measure
from torchcaps.analysis.probing import LogisticProbe, projected
from torchcaps.analysis.search import METHODS, bounds
from torchcaps.analysis.views import Arrays, View, few, lacks, register_view
from torchcaps.data import Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.layers.arrangement import Arrangement
from torchcaps.layers.templates import Templates, compose
from torchcaps.layers.turns import rotations, turned, undone
from torchcaps.models import CapsuleModel
from torchcaps.models.generative import Generative
from torchcaps.models.process import Layer


class Refined(NamedTuple):
    layers: list[Layer]
    """The best numbers of each image that were seen."""
    curve: Tensor
    """The best bound so far, before each step and after the last [steps+1,B]."""
    seconds: Tensor
    """Time since the start at each of these [steps+1]."""
    turns: Tensor | None
    """The frame of the numbers, where the model has frames."""


@contextmanager
def blurred(templates: Templates, width: float) -> Iterator[None]:
    """Templates as a Gaussian of so many pixels leaves them, for the time being."""
    reach = max(1, int(3 * width))
    at = torch.arange(-reach, reach + 1, device=templates.colour.device, dtype=torch.float32)
    line = torch.exp(-0.5 * (at / width).square())
    line = (line / line.sum()).to(templates.colour)
    kept = [p.detach().clone() for p in (templates.colour, templates.opacity)]
    for parameter in (templates.colour, templates.opacity):
        flat = parameter.detach().sigmoid().flatten(0, 1)[:, None]
        flat = F.conv2d(flat, line[None, None, :, None], padding=(reach, 0))
        flat = F.conv2d(flat, line[None, None, None], padding=(0, reach))
        parameter.data.copy_(flat[:, 0].view_as(parameter).logit(1e-4))
    try:
        yield
    finally:
        templates.colour.data.copy_(kept[0])
        templates.opacity.data.copy_(kept[1])


def starts_of(
    model: Generative, images: Tensor, count: int
) -> Iterator[tuple[list[Layer], Tensor | None]]:
    """What the encoder says of the image, and of turned copies of it, put back upright."""
    seen = model.look(images)
    yield model.infer(seen.views), seen.turns
    for turn in rotations(count, images)[1:]:
        each = turn.expand(len(images), 2, 3)
        layers = []
        for layer in model.infer(turned(images, undone(each))):
            mean = compose(each[:, None], layer.mean)
            layers.append(layer._replace(mean=mean, poses=mean))
        yield layers, None


@torch.no_grad()
def refine(
    model: Generative,
    images: Tensor,
    steps: int = 100,
    *,
    method: str = "adam",
    lr: float = 0.0,
    starts: int = 1,
    blur: float = 0.0,
    told: Callable[[list[Layer], Tensor | None], None] = lambda layers, turns: None,
) -> Refined:
    """Latent numbers after so many steps, of each image the best that were seen.

    lr: 0: the method's own. starts: angles of the image at which the search begins. blur: pixels
    by which templates are blurred in the first third of the steps, so that far parts feel them.
    told: hears the best numbers so far, and their frame, before the first step and after each
    """
    model.eval()
    if starts > 1 and model.options.frames > 1:
        raise TorchcapsError("A model with frames looks from several angles already: starts=1.")
    search, usual = METHODS[method]
    before = {n: p.requires_grad for n, p in model.named_parameters()}
    model.requires_grad_(False)
    began, coarse = time.perf_counter(), steps // 3 if blur else 0
    best: list[Layer] = []
    turns: Tensor | None = None
    record = torch.full((len(images),), -torch.inf, device=images.device)
    curve, seconds = [], []
    try:
        for layers, frame in starts_of(model, images, starts):
            stands = bounds(model, images, layers, frame)
            if coarse:
                with blurred(model.process.templates, blur):
                    found = search(model, images, layers, frame, lr or usual)
                    layers = [next(found) for _ in range(coarse + 1)][-1][0]
            here, times = [stands] * coarse, [time.perf_counter() - began] * coarse
            found = search(model, images, layers, frame, lr or usual)
            for now, height in (next(found) for _ in range(steps + 1 - coarse)):
                better = height > record
                best = _taken(better, now, best) if best else now
                turns = frame if turns is None else turns
                record = torch.where(better, height, record)
                here.append(torch.maximum(height, here[-1]) if here else height)
                times.append(time.perf_counter() - began)
                told(best, turns)
            curve.append(torch.stack(here))
            seconds.append(torch.tensor(times))
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(before[name])
    whole = torch.stack(curve).amax(0)
    return Refined(best, whole, torch.stack(seconds).amax(0), turns)


def _taken(better: Tensor, new: list[Layer], old: list[Layer]) -> list[Layer]:
    """The new numbers of images for which they are better."""

    def pick(a: Tensor | None, b: Tensor | None) -> Tensor | None:
        if a is None or b is None:
            return None
        return torch.where(better.view(-1, *[1] * (a.dim() - 1)), a, b)

    return [Layer(*map(pick, a, b)) for a, b in zip(new, old, strict=True)]  # pyright: ignore


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
    """A probe on what the encoder says, scored on what free-form inference makes of it.

    Accuracy, how much the bound gained, milliseconds an image.
    """

    needs = ("parts",)
    steps: int = 100
    """Steps for each image."""
    method: Literal["adam", "lbfgs", "levenberg"] = "adam"
    """How it steps: see analysis/search.py."""
    lr: float = 0.0
    """The rate of these steps, or their first damping; 0: the method's own."""
    starts: int = 1
    """Angles of the image at which the search begins."""
    blur: float = 0.0
    """Pixels by which templates are blurred in the first third of the steps."""
    poses: Literal["searched", "solved"] = "searched"
    """Whether poses of objects are then solved for in closed form."""

    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        assert isinstance(model, Generative)
        split = split[slice(len(split) - self.scored, None)] if self.scored else split
        right = gain = 0.0
        began = time.perf_counter()
        for number, batch in enumerate(split.batches(500)):
            self.tell("free-form", 500 * number, len(split))
            found = refine(
                model, batch.images, self.steps, method=self.method, lr=self.lr,
                starts=self.starts, blur=self.blur,
            )  # fmt: skip
            gain += float((found.curve[-1] - found.curve[0]).sum())
            layers = parents(model, found.layers) if self.poses == "solved" else found.layers
            features = model.said(batch.images, layers)[self.features or "t0"].float()
            said = self.learned.predict(projected(features, self.components))
            right += float((said == batch.labels).sum())
        spent = 1000 * (time.perf_counter() - began)
        return dict(zip(self.metrics, (n / len(split) for n in (right, gain, spent)), strict=True))

    @property
    def provenance(self) -> dict[str, str]:
        how = f"{self.method} {self.steps}"
        how += f", {self.starts} starts" if self.starts > 1 else ""
        how += f", blur {self.blur:g}" if self.blur else ""
        how += ", objects solved" if self.poses == "solved" else ""
        return {**super().provenance, "how": how}


@register_view("free-form")
class Searches(View):
    title = "Free-form inference"
    place = 43
    words = (
        "How far the bound of a few test images rises above the encoder's when each image has "
        "latent numbers of its own, by method: nats an image against steps."
    )

    def applies(self, model: CapsuleModel, data: Dataset) -> str:
        return lacks(model, data, "parts")

    def compute(self, model: CapsuleModel, data: Dataset) -> Arrays:
        assert isinstance(model, Generative)
        images, found = few(data, 16).images, {}
        for method in METHODS:
            refined = refine(model, images, 20, method=method)
            found[method] = (refined.curve - refined.curve[0]).mean(1).cpu().numpy()
            found[f"{method} seconds"] = refined.seconds.numpy()
        return found

    def drawing(self, found: dict[str, Arrays]) -> Lines:
        (arrays,) = found.values()
        lines = {}
        for number, method in enumerate(METHODS):
            spent = arrays[f"{method} seconds"]
            name = f"{method}, {1000 * spent[-1] / (len(spent) - 1):.0f} ms a step"
            lines[name] = Line(np.arange(len(spent)), arrays[method], colour=number)
        return Lines(lines, "step", "gain of the bound, nats", whole=True)
