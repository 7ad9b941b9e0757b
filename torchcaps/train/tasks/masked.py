"""Masked pretraining: drawing the patches that the model was not shown."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.data import Batch, Dataset
from torchcaps.errors import TorchcapsError
from torchcaps.layers.patches import to_patches, visible_rows
from torchcaps.models.mcae import MCAE
from torchcaps.train.tasks.base import Task, TaskConfig, register_task


@dataclass(frozen=True)
class Masked(TaskConfig):
    mask_ratio: float = 0.5
    """The share of patches that is removed before the model sees an image."""
    whole: bool = False
    """Whether the loss counts the patches that were seen too."""


@register_task("masked", Masked)
class MaskedTask(Task):
    config: Masked
    model: MCAE
    pictures = ("masked",)

    def check(self, data: Dataset, cutmix: float) -> None:
        super().check(data, cutmix)
        if "draw" not in self.model.provides:
            raise TorchcapsError(
                "The task 'masked' needs a model that draws patches it cannot see."
            )
        if not 0 < self.visible < self.model.length:
            ratio = self.config.mask_ratio
            raise TorchcapsError(f"task.mask_ratio={ratio} leaves no patch, or removes none.")

    @property
    def visible(self) -> int:
        return self.model.length - round(self.config.mask_ratio * self.model.length)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Mean squared error over the pixels of removed patches; of all of them, with `whole`."""
        model, images = self.model, batch.images
        rows = visible_rows(len(images), model.length, self.visible, images.device, self.training)
        output = model.encode(images, rows)
        drawn = model.draw(output.layers[-1], rows)
        patches = to_patches(drawn.float(), model.options.patch_size)
        error = (patches - model.patch_targets(images)).square().mean(-1)
        assert output.masked is not None
        counted = torch.ones_like(error) if self.config.whole else output.masked.float()
        return {"loss": (error * counted).sum() / counted.sum()}
