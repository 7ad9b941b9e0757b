"""What one unit of a capsule draws: perturb it and decode."""

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from torchcaps.errors import TorchcapsError
from torchcaps.models import CapsuleModel
from torchcaps.train.load import data_of, load
from torchcaps.train.run import Run

RANGE = tuple(i / 20 for i in range(-4, 5))
"""Added to squashed units: the range of the text."""
WIDE = tuple(2.0 * i for i in range(-4, 5))
"""Added to units without a bound: the range that the text had to go to."""


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


def traverse_run(
    folder: Path, image: int = 0, units: int = 4, root: Path | None = None
) -> tuple[np.ndarray, tuple[float, ...]]:
    """The first units of a finished run's model on one of its test images, in its range."""
    recipe = Run.open(folder).recipe()
    model = load(folder)
    test = data_of(recipe.data, root).test
    if not 0 <= image < len(test):
        raise TorchcapsError(f"There is no test image {image}: they are 0 to {len(test) - 1}.")
    batch = test.batch(slice(image, image + 1))
    squashed = getattr(model.config, "squash", False)
    values = RANGE if squashed else WIDE
    label = int(batch.labels.reshape(-1)[0])
    return traverse(model, batch.images[0], values=values, label=label)[:units], values


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
    return draw_traversals({"": (drawn, values)})


def draw_traversals(blocks: dict[str, tuple[np.ndarray, tuple[float, ...]]]) -> Figure:
    """A block a model; in it a row a unit, a column a value."""
    first = next(iter(blocks.values()))[0]
    width, height = 0.55 * first.shape[1] + 0.8, 0.55 * first.shape[0] + 0.6
    figure = Figure(figsize=(width * len(blocks), height + 0.2), layout="constrained")
    for axes, (name, (drawn, values)) in zip(
        figure.subplots(1, len(blocks), squeeze=False)[0], blocks.items(), strict=True
    ):
        axes.imshow(tile(drawn))
        high, wide = drawn.shape[3] + 1, drawn.shape[4] + 1
        form = "{:+.2f}" if max(values) < 1 else "{:+.0f}"
        places = [wide * (i + 0.5) for i in range(len(values))]
        axes.set_xticks(places, [form.format(v) for v in values], fontsize=7)
        rows = [high * (i + 0.5) for i in range(len(drawn))]
        axes.set_yticks(rows, [str(i) for i in range(len(drawn))], fontsize=7)
        axes.set(xlabel="added to the unit", ylabel="unit of the class capsule")
        axes.set_title(name, fontsize=8)
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
