"""Plots of a generative model: its parts in the colors of their objects, templates, inference."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.analysis.charts import Grid, Line, Lines
from torchcaps.analysis.matplotlib_figures import image_grid
from torchcaps.analysis.plots import Arrays, Plot, Subject, few, register_plot
from torchcaps.data import Dataset
from torchcaps.errors import TorchcapsError, UsageError
from torchcaps.layers.rotations import rotate, rotations
from torchcaps.layers.templates import composite, warped
from torchcaps.metrics.base import missing_need
from torchcaps.models import Model
from torchcaps.models.generative.inference import refine
from torchcaps.models.generative.model import Generative
from torchcaps.models.generative.prior import Samples, sample
from torchcaps.models.generative.process import rotated
from torchcaps.models.generative.search import METHODS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MAX_SAMPLES = 1000


def palette(count: int) -> np.ndarray:
    """Gray for no object, then one hue per object. -> [count+1,3]"""
    hue = np.arange(count)[:, None] / max(1, count) + np.array([0, 1 / 3, 2 / 3])
    colors = 0.55 + 0.45 * np.cos(2 * np.pi * hue)
    return np.concatenate([np.full((1, 3), 0.6), colors]).astype(np.float32)


@torch.no_grad()
def colored(model: Generative, poses: Tensor, presences: Tensor, owners: Tensor) -> Tensor:
    """Render parts in the color of their object. -> [B,3,H,W]

    poses [B,I,2,3], presences [B,I], owners [B,I], 0: no object
    """
    return _tinted(model, poses, presences, palette(model.options.num_caps[-2]), owners)


def by_template(model: Generative, poses: Tensor, presences: Tensor) -> Tensor:
    """Render parts with one color per template. -> [B,3,H,W]"""
    index = 1 + torch.arange(poses.shape[1], device=poses.device).expand(len(poses), -1)
    return _tinted(model, poses, presences, palette(poses.shape[1]), index)


@torch.no_grad()
def _tinted(
    model: Generative, poses: Tensor, presences: Tensor, colors: np.ndarray, index: Tensor
) -> Tensor:
    templates = model.process.templates
    channels = torch.cat([templates.color, templates.opacity], 1).sigmoid()
    images = warped(channels, poses, templates.image_size)
    hues = torch.from_numpy(colors).to(poses)[index]
    light = images[:, :, :-1].mean(2, keepdim=True) * hues[..., None, None]
    return composite(light, presences[:, :, None, None, None] * images[:, :, -1:])


@torch.no_grad()
def explained(model: Generative, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reconstructions of images, their parts colored by the likeliest object, and by template."""
    model.eval()
    bound = model.bound(images, noise=False)
    parts, owners = bound.layers[0], bound.selections[0].argmax(-1)
    poses, on = rotated(parts.poses, bound.turns), parts.logits.sigmoid()
    return bound.drawn, colored(model, poses, on, owners), by_template(model, poses, on)


def draw_samples(model: Generative, samples: Samples, columns: int = 8) -> "Figure":
    """Plot samples of a model, each with its colored parts below it."""
    parts = colored(model, samples.poses, samples.presences, samples.owners).cpu().numpy()
    plain = np.broadcast_to(samples.images.cpu().numpy().mean(1, keepdims=True), parts.shape)
    rows, names = [], []
    for first in range(0, len(parts), columns):
        for name, images in (("samples", plain), ("parts", parts)):
            row = images[first : first + columns]
            missing = columns - len(row)
            rows.append(np.concatenate([row, np.zeros((missing, *row.shape[1:]))]))
            names.append(name)
    return image_grid(np.stack(rows), names)


def _generative(model: Model) -> Generative:
    assert isinstance(model, Generative)
    return model


class PartPlot(Plot):
    """Base of the plots of models with parts."""

    needs = ("parts",)


class PartImages(PartPlot):
    """Base of plots with one row for each kind of image, the input first."""

    def chart_of(self, values: Arrays) -> Grid:
        rows = [a if a.shape[1] == 3 else np.repeat(a[:, :1], 3, axis=1) for a in values.values()]
        return Grid(np.stack(rows), ["input", *list(values)[1:]])


@register_plot("parts")
class Parts(PartImages):
    title = "Parts and their objects"
    order = 42
    description = (
        "Test images, their reconstructions, the parts in the color of their likeliest object "
        "(gray: no object), and in one color per template. Below: samples from the prior."
    )

    def compute(self, model: Model, data: Dataset) -> Arrays:
        images = few(data, 10).images
        reconstructions, by_object, templates = explained(_generative(model), images)
        samples = sample(_generative(model), len(images))
        parts = colored(_generative(model), samples.poses, samples.presences, samples.owners)
        rows = {"images": images, "reconstruction": reconstructions, "parts": by_object}
        rows |= {"templates": templates, "samples": samples.images, "parts of samples": parts}
        return {name: t.cpu().numpy() for name, t in rows.items()}


@register_plot("templates")
class TemplatePlot(PartPlot):
    title = "Templates"
    order = 44
    description = "The template of each part: its color times its opacity."

    def compute(self, model: Model, data: Dataset) -> Arrays:
        templates = _generative(model).process.templates
        visible = templates.color.sigmoid() * templates.opacity.sigmoid()
        return {"templates": visible.detach().mean(1, keepdim=True).cpu().numpy()}

    def chart(self, arrays: dict[str, Arrays]) -> Grid:
        ((templates,),) = (values.values() for values in arrays.values())
        columns = min(8, len(templates))
        shape = (-len(templates) % columns, *templates.shape[1:])
        padded = np.concatenate([templates, np.zeros(shape, templates.dtype)])
        rows = padded.reshape(-1, columns, *templates.shape[1:])
        return Grid(rows, [str(columns * n) for n in range(len(rows))])


@register_plot("turned")
class RotatedDigit(PartImages):
    title = "Parts of a rotated image"
    order = 45
    description = (
        "A test image rotated in steps of 30 degrees, its reconstruction by the encoder, the "
        "reconstruction after 30 steps of free-form inference, and the parts in one color per "
        "template. Where colors change, another template explains the same stroke."
    )

    def compute(self, model: Model, data: Dataset) -> Arrays:
        generative = _generative(model)
        images = few(data, 2).images[1:].expand(12, -1, -1, -1)
        images = rotate(images, rotations(12, images))
        encoded, _, templates = explained(generative, images)
        result = refine(generative, images, 30)
        with torch.no_grad():
            refined = generative.process.decode(result.layers[0], result.turns)
        rows = {"images": images, "encoder": encoded, "refined": refined, "templates": templates}
        return {name: t.cpu().numpy() for name, t in rows.items()}


@register_plot("free-form")
class FreeFormCurves(PartPlot):
    title = "Free-form inference"
    order = 43
    description = (
        "Gain of the bound over the encoder's, in nats per image, when the latent variables of a "
        "few test images are optimized; by method and step."
    )

    def compute(self, model: Model, data: Dataset) -> Arrays:
        images, arrays = few(data, 16).images, {}
        for method in METHODS:
            refined = refine(_generative(model), images, 20, method=method)
            arrays[method] = (refined.curve - refined.curve[0]).mean(1).cpu().numpy()
            arrays[f"{method} seconds"] = refined.seconds.numpy()
        return arrays

    def chart_of(self, values: Arrays) -> Lines:
        lines = {}
        for number, method in enumerate(METHODS):
            seconds = values[f"{method} seconds"]
            name = f"{method}, {1000 * seconds[-1] / (len(seconds) - 1):.0f} ms per step"
            lines[name] = Line(np.arange(len(seconds)), values[method], color=number)
        return Lines(lines, "step", "gain of the bound, nats", whole=True)


@register_plot("samples")
@dataclass(frozen=True)
class SamplePlot(Plot):
    title = "Samples from the prior"
    order = -1
    description = "Images sampled from a generative model, and their parts in colors of objects."
    needs = ("sample",)
    count: int = 16
    """Number of images."""
    seed: int = 0
    """Seed of the samples."""

    def arrays(self, subject: Subject) -> Any:
        model = subject.model()
        if need := missing_need(model, None, self.needs):
            raise TorchcapsError(
                f"{subject.name}: no samples. A {model.config.family} lacks {need}."
            )
        if not 1 <= self.count <= MAX_SAMPLES:
            raise UsageError(f"count={self.count}: it lies between 1 and {MAX_SAMPLES:,}.")
        samples: Any = sample(_generative(model), self.count, self.seed)
        return model, samples

    def figure(self, arrays: dict[str, Any]) -> "Figure":
        ((model, samples),) = arrays.values()
        return draw_samples(model, samples)
