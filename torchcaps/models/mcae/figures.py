"""Plot of the removed patches that a masked autoencoder reconstructs."""

from typing import Any

import numpy as np
import torch

from torchcaps.analysis.charts import Grid
from torchcaps.analysis.plots import Arrays, Plot, few, register_plot
from torchcaps.data import Dataset
from torchcaps.models.mcae.patches import from_patches, to_patches, visible_rows


@register_plot("masked")
class Masked(Plot):
    title = "Removed patches"
    order = 45
    description = (
        "Test images, the same with half of their patches removed, and the removed patches as the "
        "model reconstructs them."
    )
    needs = ("inpaint",)

    @torch.no_grad()
    def compute(self, model: Any, data: Dataset) -> Arrays:
        images = few(data, 8).images
        size, side, length = model.options.patch_size, model.side, model.length
        rows = visible_rows(len(images), length, length - length // 2, images.device, False)
        output = model.encode(images, rows)
        removed = output.masked[..., None]
        decoded = model.inpaint(output.layers[-1], rows).float()
        patches = to_patches(images, size)
        pictures = {
            "images": patches,
            "visible": torch.where(removed, 0.5, patches),
            "reconstruction": torch.where(removed, model.patch_pixels(decoded, images), patches),
        }
        return {
            name: from_patches(p, size, side).clamp(0, 1).cpu().numpy()
            for name, p in pictures.items()
        }

    def chart_of(self, values: Arrays) -> Grid:
        rows = np.stack([values[name] for name in ("images", "visible", "reconstruction")])
        return Grid(rows, ["input", "visible", "reconstruction"], inches=0.7)
