"""The task `masked`: pretrain a model by reconstructing removed patches."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data import Batch, Dataset
from torchcaps.errors import TorchcapsError, TorchcapsWarning
from torchcaps.models.mcae.model import MCAE
from torchcaps.models.mcae.patches import to_patches, visible_rows
from torchcaps.training.task import Task, TaskConfig, register_task

SLOW_PATCHES = 400
"""Patches above which larger ones are advised."""


@dataclass(frozen=True, kw_only=True)
class Masked(TaskConfig):
    mask_ratio: float = 0.5
    """Fraction of patches that is removed."""
    whole: bool = False
    """Count visible patches in the loss too."""


@register_task("masked", Masked)
class MaskedTask(Task):
    config: Masked
    model: MCAE
    needs = ("inpaint",)
    example = "mcae-pretrain"

    def check(self, data: Dataset, cutmix: float) -> None:
        super().check(data, cutmix)
        if not 0 < self.visible < self.model.length:
            ratio = self.config.mask_ratio
            raise TorchcapsError(
                f"task.mask_ratio={ratio} of {self.model.length} patches must remove at least one "
                "patch and leave at least one."
            )
        if self.model.length > SLOW_PATCHES:
            size, side = self.model.options.patch_size, self.model.config.image_size
            better = next(s for s in range(size, side + 1) if side % s == 0 and side // s <= 16)
            warnings.warn(
                f"{self.model.length:,} patches of {size}x{size} pixels are slow to train; "
                f"--model.patch-size {better} makes {(side // better) ** 2}.",
                TorchcapsWarning,
                stacklevel=2,
            )

    def figures(self, data: Dataset) -> dict[str, Callable[[Path], None]]:
        from torchcaps.analysis.matplotlib_figures import save_figure
        from torchcaps.analysis.plots import get_plot

        plot = get_plot("masked")
        arrays = plot.compute(self.model, data)
        return {"masked": lambda path: save_figure(plot.figure({"masked": arrays}), path, dpi=110)}

    @property
    def visible(self) -> int:
        return self.model.length - round(self.config.mask_ratio * self.model.length)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Mean squared error over the pixels of removed patches, or of all patches (`whole`)."""
        model, images = self.model, batch.images
        rows = visible_rows(len(images), model.length, self.visible, images.device, self.training)
        output = model.encode(images, rows)
        decoded = model.inpaint(output.layers[-1], rows)
        patches = to_patches(decoded.float(), model.options.patch_size)
        error = (patches - model.patch_targets(images)).square().mean(-1)
        assert output.masked is not None
        weight = torch.ones_like(error) if self.config.whole else output.masked.float()
        return {"loss": (error * weight).sum() / weight.sum()}
