"""Free-form inference: optimize the latent variables of each image, starting from the encoder.

refine           search for a better bound (models/generative/search.py), optionally from several
                 rotations of the image and with blurred templates at first
solve_objects    objects in closed form with fixed parts: EM with one 3x3 solve per object
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.data import Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.layers.rotations import inverse, rotate, rotations
from torchcaps.layers.templates import Templates, compose
from torchcaps.metrics.base import register_metric
from torchcaps.metrics.probes.metric import LogisticProbe, projected
from torchcaps.models import Model
from torchcaps.models.generative.arrangement import Arrangement
from torchcaps.models.generative.model import Generative
from torchcaps.models.generative.process import Layer
from torchcaps.models.generative.search import METHODS, bounds


class Refined(NamedTuple):
    layers: list[Layer]
    """Best latent variables of each image."""
    curve: Tensor
    """Best bound so far, before each step and after the last [steps+1,B]."""
    seconds: Tensor
    """Time since the start at each of these [steps+1]."""
    turns: Tensor | None
    """Rotation from the frame of the latent variables to the image, for models with frames."""


@contextmanager
def blurred(templates: Templates, width: float) -> Iterator[None]:
    """Blur templates temporarily by a Gaussian of this many pixels."""
    radius = max(1, int(3 * width))
    x = torch.arange(-radius, radius + 1, device=templates.color.device, dtype=torch.float32)
    kernel = torch.exp(-0.5 * (x / width).square())
    kernel = (kernel / kernel.sum()).to(templates.color)
    parameters = (templates.color, templates.opacity)
    originals = [p.detach().clone() for p in parameters]
    for parameter in parameters:
        flat = parameter.detach().sigmoid().flatten(0, 1)[:, None]
        flat = F.conv2d(flat, kernel[None, None, :, None], padding=(radius, 0))
        flat = F.conv2d(flat, kernel[None, None, None], padding=(0, radius))
        parameter.data.copy_(flat[:, 0].view_as(parameter).logit(1e-4))
    try:
        yield
    finally:
        for parameter, original in zip(parameters, originals, strict=True):
            parameter.data.copy_(original)


def initial_layers(
    model: Generative, images: Tensor, count: int
) -> Iterator[tuple[list[Layer], Tensor | None]]:
    """Posterior of the image, and of `count - 1` rotated copies, rotated back."""
    chosen = model.look(images)
    yield model.infer(chosen.views), chosen.turns
    for rotation in rotations(count, images)[1:]:
        each = rotation.expand(len(images), 2, 3)
        layers = []
        for layer in model.infer(rotate(images, inverse(each))):
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
    callback: Callable[[list[Layer], Tensor | None], None] = lambda layers, turns: None,
) -> Refined:
    """Optimize latent variables by this many steps and keep the best of each image.

    lr: learning rate; 0: the method's default. starts: rotations of the image from which the search
    starts. blur: blur of the templates in pixels in the first third of the steps, which gives
    distant parts a gradient. callback: called with the best latent variables and their frame,
    before the first step and after each step
    """
    model.eval()
    if starts > 1 and model.options.frames > 1:
        raise TorchcapsError(
            f"starts={starts}: a model with frames already tries several rotations. Use starts=1."
        )
    search, default_lr = METHODS[method]
    requires_grad = {n: p.requires_grad for n, p in model.named_parameters()}
    model.requires_grad_(False)
    start_time, blurred_steps = time.perf_counter(), steps // 3 if blur else 0
    best: list[Layer] = []
    turns: Tensor | None = None
    best_bound = torch.full((len(images),), -torch.inf, device=images.device)
    curves, seconds = [], []
    try:
        for layers, frame in initial_layers(model, images, starts):
            start_bound = bounds(model, images, layers, frame)
            if blurred_steps:
                with blurred(model.process.templates, blur):
                    steps_of = search(model, images, layers, frame, lr or default_lr)
                    layers = [next(steps_of) for _ in range(blurred_steps + 1)][-1][0]
            curve = [start_bound] * blurred_steps
            times = [time.perf_counter() - start_time] * blurred_steps
            steps_of = search(model, images, layers, frame, lr or default_lr)
            for layers, bound in (next(steps_of) for _ in range(steps + 1 - blurred_steps)):
                better = bound > best_bound
                best = _select(better, layers, best) if best else layers
                turns = frame if turns is None else turns
                best_bound = torch.where(better, bound, best_bound)
                curve.append(torch.maximum(bound, curve[-1]) if curve else bound)
                times.append(time.perf_counter() - start_time)
                callback(best, turns)
            curves.append(torch.stack(curve))
            seconds.append(torch.tensor(times))
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(requires_grad[name])
    return Refined(best, torch.stack(curves).amax(0), torch.stack(seconds).amax(0), turns)


def _select(better: Tensor, new: list[Layer], old: list[Layer]) -> list[Layer]:
    """The new latent variables of the images for which they are better, else the old ones."""

    def pick(a: Tensor | None, b: Tensor | None) -> Tensor | None:
        if a is None or b is None:
            return None
        return torch.where(better.view(-1, *[1] * (a.dim() - 1)), a, b)

    return [Layer(*map(pick, a, b)) for a, b in zip(new, old, strict=True)]  # pyright: ignore


@torch.no_grad()
def solve_objects(model: Generative, layers: list[Layer], iterations: int = 5) -> list[Layer]:
    """Solve for the poses of the lowest objects by EM, with the parts fixed."""
    low, high, *rest = layers
    arrangement = model.process.arrangements[-1]
    assert isinstance(arrangement, Arrangement)
    for _ in range(iterations):
        joint = arrangement(high.logits, high.poses, low.logits, low.poses)
        poses = arrangement.em_step(
            joint.softmax(-1)[..., 1:], high.poses, low.logits, low.poses, model.options.pose_std
        )
        high = high._replace(mean=poses, poses=poses)
    return [low, high, *rest]


@register_metric("free-form", ("free_form_accuracy", "free_form_gain", "free_form_ms"))
@dataclass
class FreeForm(LogisticProbe):
    """A probe fitted on the encoder's representations and tested after free-form inference.

    Accuracy, gain of the bound, and milliseconds per image.
    """

    needs = ("parts",)
    steps: int = 100
    """Steps for each image."""
    method: Literal["adam", "lbfgs", "levenberg"] = "adam"
    """Optimizer: see models/generative/search.py."""
    lr: float = 0.0
    """Learning rate, or initial damping for levenberg; 0: the method's default."""
    starts: int = 1
    """Number of rotations of the image from which the search starts."""
    blur: float = 0.0
    """Blur of the templates in pixels, in the first third of the steps."""
    poses: Literal["searched", "solved"] = "searched"
    """Poses of objects as searched, or solved for in closed form afterwards."""

    def score(self, model: Model, data: Dataset, split: Split) -> dict[str, float]:
        assert isinstance(model, Generative)
        split = self.scored_rows(split)
        correct = gain = 0.0
        start_time = time.perf_counter()
        for number, batch in enumerate(split.batches(500)):
            self.tell("free-form", 500 * number, len(split))
            refined = refine(
                model, batch.images, self.steps, method=self.method, lr=self.lr,
                starts=self.starts, blur=self.blur,
            )  # fmt: skip
            gain += float((refined.curve[-1] - refined.curve[0]).sum())
            layers = refined.layers
            if self.poses == "solved":
                layers = solve_objects(model, layers)
            features = model.representations_of(batch.images, layers)[self.features or "t0"].float()
            predictions = self.learned.predict(projected(features, self.components))
            correct += float((predictions == batch.labels).sum())
        elapsed = 1000 * (time.perf_counter() - start_time)
        totals = (correct, gain, elapsed)
        return {name: n / len(split) for name, n in zip(self.values, totals, strict=True)}

    @property
    def provenance(self) -> dict[str, str]:
        how = f"{self.method} {self.steps}"
        how += f", {self.starts} starts" if self.starts > 1 else ""
        how += f", blur {self.blur:g}" if self.blur else ""
        how += ", objects solved" if self.poses == "solved" else ""
        return {**super().provenance, "how": how}
