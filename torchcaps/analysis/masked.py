"""What a masked autoencoder draws of the patches that it cannot see."""

from typing import Any

import numpy as np
import torch

from torchcaps.analysis.drawings import Grid
from torchcaps.analysis.views import Arrays, View, few, lacks, register_view
from torchcaps.data import Dataset
from torchcaps.layers.patches import from_patches, to_patches, visible_rows
from torchcaps.models import CapsuleModel


@register_view("masked")
class Masked(View):
    title = "Removed patches"
    place = 45
    words = (
        "Test images, what is left of them when half of the patches are removed, and what the "
        "model draws in the places of those."
    )

    def applies(self, model: CapsuleModel, data: Dataset) -> str:
        return lacks(model, data, "draw")

    @torch.no_grad()
    def compute(self, model: Any, data: Dataset) -> Arrays:
        images = few(data, 8).images
        size, side, length = model.options.patch_size, model.side, model.length
        rows = visible_rows(len(images), length, length - length // 2, images.device, False)
        output = model.encode(images, rows)
        removed = output.masked[..., None]
        drawn = model.draw(output.layers[-1], rows).float()
        patches, made = to_patches(images, size), model.patch_pixels(drawn, images)
        found = {
            "images": patches,
            "visible": torch.where(removed, 0.5, patches),
            "drawn": torch.where(removed, made, patches),
        }
        return {
            name: from_patches(p, size, side).clamp(0, 1).cpu().numpy() for name, p in found.items()
        }

    def drawing(self, found: dict[str, Arrays]) -> Grid:
        (arrays,) = found.values()
        rows = np.stack([arrays[name] for name in ("images", "visible", "drawn")])
        return Grid(rows, ["input", "visible", "drawn"], inches=0.7)
