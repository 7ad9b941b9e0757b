"""Parts of a generative model in the colours of their objects: of test images, and made up."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from torchcaps.analysis.figure import image_grid
from torchcaps.analysis.views import Arrays, View, few, lacks, register_view
from torchcaps.data import Dataset
from torchcaps.layers.templates import compose, composite, warped
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
    templates = model.process.templates
    both = torch.cat([templates.colour, templates.opacity], 1).sigmoid()
    drawn = warped(both, poses, templates.image_size)
    hues = torch.from_numpy(palette(model.options.num_caps[-2])).to(poses.device)[owners]
    light = drawn[:, :, :-1].mean(2, keepdim=True) * hues[..., None, None]
    return composite(light, presences[:, :, None, None, None] * drawn[:, :, -1:])


@torch.no_grad()
def explained(model: Generative, images: Tensor) -> tuple[Tensor, Tensor]:
    """The drawing of images, and its parts in the colours of their likeliest objects."""
    model.eval()
    bound = model.bound(images, noise=False)
    parts, owners = bound.layers[0], bound.selections[0].argmax(-1)
    poses = parts.poses if bound.turns is None else compose(bound.turns[:, None], parts.poses)
    return bound.drawn, coloured(model, poses, parts.logits.sigmoid(), owners)


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


@register_view("parts")
class Parts(View):
    title = "Parts and their objects"
    place = 42
    words = (
        "Test images, what the parts draw, and the parts in the colour of the object that most "
        "likely has them; grey: none. Below, images that the model makes up."
    )

    def applies(self, model: CapsuleModel, data: Dataset) -> str:
        return lacks(model, data, "parts")

    def compute(self, model: CapsuleModel, data: Dataset) -> Arrays:
        images = few(data, 10).images
        drawn, hues = explained(_generative(model), images)
        made = sample(_generative(model), len(images))
        parts = coloured(_generative(model), made.poses, made.presences, made.owners)
        whole = {"images": images, "drawn": drawn, "parts": hues}
        whole |= {"made up": made.images, "its parts": parts}
        return {name: t.cpu().numpy() for name, t in whole.items()}

    def draw(self, found: dict[str, Arrays]) -> "Figure":
        (arrays,) = found.values()
        rows = [
            a if a.shape[1] == 3 else np.repeat(a[:, :1], 3, axis=1) for a in arrays.values()
        ]  # fmt: skip
        return image_grid(np.stack(rows), ["input", *list(arrays)[1:]])
