"""What one unit of a capsule draws: perturb it and decode."""

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from torchcaps.errors import TorchcapsError
from torchcaps.models import CapsuleModel

RANGE = tuple(i / 20 for i in range(-5, 6))


@torch.no_grad()
def traverse(
    model: CapsuleModel,
    image: Tensor,
    unit: int | None = None,
    values: tuple[float, ...] = RANGE,
    label: int | None = None,
) -> np.ndarray:
    """Add each of `values` to one unit (or to each in turn) of the class capsule and decode.

    image [C,H,W] in [0,1] -> [units, values, C, H, W]
    """
    model.eval()
    output = model(image[None])
    if output.capsules is None or model.decoder is None:
        raise TorchcapsError("Only a model with class capsules and a decoder can be traversed.")
    chosen = int(output.logits.argmax()) if label is None else label
    capsules = output.capsules[0]
    units = range(capsules.shape[1]) if unit is None else [unit]
    offsets = torch.zeros(len(units), len(values), *capsules.shape, device=capsules.device)
    for row, which in enumerate(units):
        offsets[row, :, chosen, which] = torch.tensor(values, device=capsules.device)
    moved = (capsules + offsets).flatten(0, 1)
    labels = torch.full((len(moved),), chosen, device=capsules.device)
    drawn = model.decode(moved, labels)
    return drawn.unflatten(0, (len(units), len(values))).cpu().numpy()


@torch.no_grad()
def reconstructions(
    model: CapsuleModel, images: Tensor, labels: Tensor | None = None
) -> np.ndarray:
    """images [B,C,H,W] -> what the decoder draws of them [B,C,H,W]"""
    model.eval()
    drawn = model(images, labels).reconstruction
    if drawn is None:
        raise TorchcapsError("Only a model with a decoder reconstructs.")
    return drawn.cpu().numpy()


def tile(images: np.ndarray, gap: int = 1) -> np.ndarray:
    """A grid of images as one. [R,N,C,H,W] in [0,1] -> [H',W'] or [H',W',3]"""
    rows, columns, channels, height, width = images.shape
    canvas = np.ones((rows * (height + gap) - gap, columns * (width + gap) - gap, 3))
    for r in range(rows):
        for c in range(columns):
            pixels = images[r, c].transpose(1, 2, 0)
            if channels != 3:
                pixels = np.repeat(pixels[:, :, :1], 3, 2)
            top, left = r * (height + gap), c * (width + gap)
            canvas[top : top + height, left : left + width] = pixels
    return canvas.clip(0, 1)


def draw_traversal(drawn: np.ndarray, values: tuple[float, ...] = RANGE) -> Figure:
    """A row a unit, a column a value."""
    figure = Figure(
        figsize=(0.55 * drawn.shape[1] + 0.8, 0.55 * drawn.shape[0] + 0.6), layout="constrained"
    )
    axes = figure.subplots()
    axes.imshow(tile(drawn))
    height, width = drawn.shape[3] + 1, drawn.shape[4] + 1
    axes.set_xticks(
        [width * (i + 0.5) for i in range(len(values))], [f"{v:+.2f}" for v in values], fontsize=7
    )
    axes.set_yticks(
        [height * (i + 0.5) for i in range(len(drawn))],
        [str(i) for i in range(len(drawn))],
        fontsize=7,
    )
    axes.set(xlabel="added to the unit", ylabel="unit of the class capsule")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure


def draw_reconstructions(images: np.ndarray, drawn: np.ndarray) -> Figure:
    """Inputs above, drawings below."""
    figure = Figure(figsize=(0.7 * len(images) + 0.6, 1.7), layout="constrained")
    axes = figure.subplots()
    axes.imshow(tile(np.stack([images, drawn])))
    height = images.shape[2] + 1
    axes.set_yticks([height * 0.5, height * 1.5], ["input", "drawn"], fontsize=8)
    axes.set_xticks([])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return figure
