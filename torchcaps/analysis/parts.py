"""Parts of a generative model in the colours of their objects: of test images, and made up."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchcaps.analysis.drawings import Grid
from torchcaps.analysis.figure import image_grid
from torchcaps.analysis.free_form import refine
from torchcaps.analysis.views import Arrays, View, few, lacks, register_view
from torchcaps.data import Dataset
from torchcaps.layers.templates import compose, composite, warped
from torchcaps.layers.turns import rotations, turned
from torchcaps.models import CapsuleModel
from torchcaps.models.generative import Generative
from torchcaps.models.prior import Drawn, sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def palette(count: int) -> np.ndarray:
    """Grey for no object, then a hue for each. -> [count+1,3]"""
    hue = np.arange(count)[:, None] / max(1, count) + np.array([0, 1 / 3, 2 / 3])
    colours = 0.55 + 0.45 * np.cos(2 * np.pi * hue)
    return np.concatenate([np.full((1, 3), 0.6), colours]).astype(np.float32)


@torch.no_grad()
def coloured(model: Generative, poses: Tensor, presences: Tensor, owners: Tensor) -> Tensor:
    """Parts where they stand, in the colour of their object. -> [B,3,H,W]

    poses [B,I,2,3], presences [B,I], owners [B,I], 0: no object
    """
    return _tinted(model, poses, presences, palette(model.options.num_caps[-2]), owners)


def by_template(model: Generative, poses: Tensor, presences: Tensor) -> Tensor:
    """Parts where they stand, each in a colour of its own. -> [B,3,H,W]"""
    each = 1 + torch.arange(poses.shape[1], device=poses.device).expand(len(poses), -1)
    return _tinted(model, poses, presences, palette(poses.shape[1]), each)


@torch.no_grad()
def _tinted(
    model: Generative, poses: Tensor, presences: Tensor, colours: np.ndarray, which: Tensor
) -> Tensor:
    templates = model.process.templates
    both = torch.cat([templates.colour, templates.opacity], 1).sigmoid()
    drawn = warped(both, poses, templates.image_size)
    hues = torch.from_numpy(colours).to(poses)[which]
    light = drawn[:, :, :-1].mean(2, keepdim=True) * hues[..., None, None]
    return composite(light, presences[:, :, None, None, None] * drawn[:, :, -1:])


@torch.no_grad()
def explained(model: Generative, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The drawing of images, its parts in the colours of their likeliest objects, and in colours of
    their own.
    """
    model.eval()
    bound = model.bound(images, noise=False)
    parts, owners = bound.layers[0], bound.selections[0].argmax(-1)
    poses = parts.poses if bound.turns is None else compose(bound.turns[:, None], parts.poses)
    on = parts.logits.sigmoid()
    return bound.drawn, coloured(model, poses, on, owners), by_template(model, poses, on)


def draw_samples(model: Generative, drawn: Drawn, columns: int = 8) -> "Figure":
    """Images that a model made up, each with its parts in colours below it."""
    hues = coloured(model, drawn.poses, drawn.presences, drawn.owners).cpu().numpy()
    plain = np.broadcast_to(drawn.images.cpu().numpy().mean(1, keepdims=True), hues.shape)
    rows, names = [], []
    for first in range(0, len(hues), columns):
        for name, images in (("drawn", plain), ("parts", hues)):
            row = images[first : first + columns]
            lack = columns - len(row)
            rows.append(np.concatenate([row, np.zeros((lack, *row.shape[1:]))]))
            names.append(name)
    return image_grid(np.stack(rows), names)


def _generative(model: CapsuleModel) -> Generative:
    assert isinstance(model, Generative)
    return model


def _rows(found: dict[str, Arrays]) -> Grid:
    """A row for each kind of image, the input's first."""
    (arrays,) = found.values()
    rows = [a if a.shape[1] == 3 else np.repeat(a[:, :1], 3, axis=1) for a in arrays.values()]
    return Grid(np.stack(rows), ["input", *list(arrays)[1:]])


@register_view("parts")
class Parts(View):
    title = "Parts and their objects"
    place = 42
    words = (
        "Test images, what the parts draw, the parts in the colour of the object that most likely "
        "has them (grey: none), and each template in its own. Below, images that the model makes "
        "up."
    )

    def applies(self, model: CapsuleModel, data: Dataset) -> str:
        return lacks(model, data, "parts")

    def compute(self, model: CapsuleModel, data: Dataset) -> Arrays:
        images = few(data, 10).images
        drawn, hues, own = explained(_generative(model), images)
        made = sample(_generative(model), len(images))
        parts = coloured(_generative(model), made.poses, made.presences, made.owners)
        whole = {"images": images, "drawn": drawn, "parts": hues, "templates": own}
        whole |= {"made up": made.images, "its parts": parts}
        return {name: t.cpu().numpy() for name, t in whole.items()}

    def drawing(self, found: dict[str, Arrays]) -> Grid:
        return _rows(found)


@register_view("templates")
class Drawers(View):
    title = "Templates"
    place = 44
    words = "What each part draws with, where it is opaque."

    def applies(self, model: CapsuleModel, data: Dataset) -> str:
        return lacks(model, data, "parts")

    def compute(self, model: CapsuleModel, data: Dataset) -> Arrays:
        templates = _generative(model).process.templates
        shown = templates.colour.sigmoid() * templates.opacity.sigmoid()
        return {"templates": shown.detach().mean(1, keepdim=True).cpu().numpy()}

    def drawing(self, found: dict[str, Arrays]) -> Grid:
        ((templates,),) = (arrays.values() for arrays in found.values())
        columns = min(8, len(templates))
        lack = -len(templates) % columns
        shape = (lack, *templates.shape[1:])
        whole = np.concatenate([templates, np.zeros(shape, templates.dtype)])
        rows = whole.reshape(-1, columns, *templates.shape[1:])
        return Grid(rows, [str(columns * n) for n in range(len(rows))])


@register_view("turned")
class Turned(View):
    title = "One digit, turned"
    place = 45
    words = (
        "A test image in steps of 30 degrees, what the encoder's parts draw of it, what free-form "
        "inference makes of that in 30 steps, and the parts in colours of their own: one colour, "
        "one template. Where colours change, another template draws the same stroke."
    )

    def applies(self, model: CapsuleModel, data: Dataset) -> str:
        return lacks(model, data, "parts")

    def compute(self, model: CapsuleModel, data: Dataset) -> Arrays:
        own = _generative(model)
        images = few(data, 2).images[1:].expand(12, -1, -1, -1)
        images = turned(images, rotations(12, images))
        drawn, _, hues = explained(own, images)
        found = refine(own, images, 30)
        with torch.no_grad():
            better = own.process.draw(found.layers[0], found.turns)
        whole = {"images": images, "drawn": drawn, "refined": better, "templates": hues}
        return {name: t.cpu().numpy() for name, t in whole.items()}

    def drawing(self, found: dict[str, Arrays]) -> Grid:
        return _rows(found)
