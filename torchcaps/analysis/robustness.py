"""Accuracy against the size of a transformation."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from torchcaps.analysis.accuracy import logits_of
from torchcaps.analysis.drawings import Line, Lines
from torchcaps.analysis.views import Arrays, View, evenly, lacks, register_view
from torchcaps.data import Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.functional import affine_matrix, warp
from torchcaps.models import CapsuleModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Factor = Literal["rotation", "shear_x", "shear_y", "scale", "shift_x", "shift_y"]
Transform = Factor | Callable[[torch.Tensor, float], torch.Tensor]
"""By name, or a function of one's own: (images [B,C,H,W], amount) -> images."""
GRIDS: dict[str, tuple[float, ...]] = {
    "rotation": tuple(range(-90, 91, 15)),
    "shear_x": (-0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6),
    "shear_y": (-0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6),
    "scale": (0.5, 0.65, 0.8, 1.0, 1.2, 1.35, 1.5),
    "shift_x": (-8, -6, -4, -2, 0, 2, 4, 6, 8),
    "shift_y": (-8, -6, -4, -2, 0, 2, 4, 6, 8),
}


def transformed(images: torch.Tensor, transform: Transform, amount: float) -> torch.Tensor:
    """Every image under the same transformation. images [B,C,H,W] float -> [B,C,H,W]"""
    if callable(transform):
        return transform(images, amount)
    if transform == "shear_y":  # along x with the axes exchanged
        return transformed(images.mT, "shear_x", amount).mT
    ones = images.new_ones(len(images))
    zeros = torch.zeros_like(ones)
    values = {
        "rotation": zeros,
        "shear_x": zeros,
        "scale": ones,
        "shift_x": zeros,
        "shift_y": zeros,
    }
    values[transform] = ones * amount
    scale = values["scale"][:, None].expand(-1, 2)
    shift = torch.stack([values["shift_x"], values["shift_y"]], -1)
    height, width = images.shape[2:]
    return warp(
        images, affine_matrix(values["rotation"], scale, values["shear_x"], shift), (height, width)
    )


@torch.no_grad()
def accuracy_under(
    model: CapsuleModel,
    split: Split,
    transform: Transform = "rotation",
    grid: tuple[float, ...] | None = None,
    batch_size: int = 500,
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy at every point of a grid of degrees, shears, scales or pixels -> (grid, accuracy)"""
    if grid is None:
        if callable(transform):
            raise TorchcapsError("A transformation of one's own needs its `grid`.")
        grid = GRIDS[transform]
    model.eval()
    accuracies = []
    for amount in grid:
        right = torch.zeros((), device=split.images.device)
        for batch in split.batches(batch_size):
            output = model.encode(transformed(batch.images, transform, amount))
            right += (logits_of(output).argmax(-1) == batch.labels).sum()
        accuracies.append(float(right) / len(split))
    return np.asarray(grid), np.asarray(accuracies)


def draw_accuracy_under(curves: dict[str, tuple[np.ndarray, np.ndarray]], factor: str) -> "Figure":
    """One line a model."""
    return _accuracy_lines(curves, factor).figure()


def _accuracy_lines(curves: dict[str, tuple[np.ndarray, np.ndarray]], factor: str) -> Lines:
    unit = {"rotation": "degrees", "shear_x": "", "shear_y": "", "scale": ""}.get(factor, "pixels")
    lines = {
        name: Line(grid, 100 * accuracy, colour=n, points=True)
        for n, (name, (grid, accuracy)) in enumerate(curves.items())
    }
    return Lines(lines, f"{factor} {unit}".strip(), "test accuracy, %", 0, 101)


@register_view("rotation")
class Rotation(View):
    title = "Accuracy against rotation"
    place = 30
    words = (
        "Test images turned by a fixed angle; no model was trained on turned images unless its "
        "recipe says so."
    )
    together = True

    def applies(self, model: CapsuleModel, data: Dataset) -> str:
        return lacks(model, data, "logits", "labels")

    def compute(self, model: CapsuleModel, data: Dataset) -> Arrays:
        part = data.test[evenly(len(data.test), 500).to(data.test.images.device)]
        grid, accuracy = accuracy_under(model, part, "rotation")
        return {"degrees": grid, "accuracy": accuracy}

    def drawing(self, found: dict[str, Arrays]) -> Lines:
        curves = {name: (a["degrees"], a["accuracy"]) for name, a in found.items()}
        return _accuracy_lines(curves, "rotation")
