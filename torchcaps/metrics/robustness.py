"""Accuracy against the size of a transformation."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from torchcaps.data import Split
from torchcaps.errors import TorchcapsError
from torchcaps.functional import affine_matrix, warp
from torchcaps.metrics.accuracy import logits_of

if TYPE_CHECKING:
    from torchcaps.models import Model

Factor = Literal["rotation", "shear_x", "shear_y", "scale", "shift_x", "shift_y"]
Transform = Factor | Callable[[torch.Tensor, float], torch.Tensor]
"""A name, or a custom function: (images [B,C,H,W], amount) -> images."""
GRIDS: dict[str, tuple[float, ...]] = {
    "rotation": tuple(range(-90, 91, 15)),
    "shear_x": (-0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6),
    "shear_y": (-0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6),
    "scale": (0.5, 0.65, 0.8, 1.0, 1.2, 1.35, 1.5),
    "shift_x": (-8, -6, -4, -2, 0, 2, 4, 6, 8),
    "shift_y": (-8, -6, -4, -2, 0, 2, 4, 6, 8),
}


def transformed(images: torch.Tensor, transform: Transform, amount: float) -> torch.Tensor:
    """Apply one transformation to all images. images [B,C,H,W] float -> [B,C,H,W]"""
    if callable(transform):
        return transform(images, amount)
    if transform == "shear_y":  # shear along x with swapped axes
        return transformed(images.mT, "shear_x", amount).mT
    ones = images.new_ones(len(images))
    zeros = torch.zeros_like(ones)
    values = dict.fromkeys(("rotation", "shear_x", "shift_x", "shift_y"), zeros) | {"scale": ones}
    values[transform] = ones * amount
    scale = values["scale"][:, None].expand(-1, 2)
    shift = torch.stack([values["shift_x"], values["shift_y"]], -1)
    height, width = images.shape[2:]
    matrix = affine_matrix(values["rotation"], scale, values["shear_x"], shift)
    return warp(images, matrix, (height, width))


@torch.no_grad()
def accuracy_under(
    model: "Model",
    split: Split,
    transform: Transform = "rotation",
    grid: tuple[float, ...] | None = None,
    batch_size: int = 500,
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy at each amount of a transformation. -> (grid, accuracy)

    grid: amounts in degrees, shears, scales or pixels; default: that of the named transformation
    """
    if grid is None:
        if callable(transform):
            raise TorchcapsError("A custom transformation needs a `grid`, such as (-1, 0, 1).")
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
