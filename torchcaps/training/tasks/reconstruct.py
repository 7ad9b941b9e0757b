"""Reconstruct the image, without labels."""

from dataclasses import dataclass

from torch import Tensor

from torchcaps.data import Batch
from torchcaps.losses import reconstruction_loss
from torchcaps.training.task import Task, TaskConfig, register_task


@dataclass(frozen=True, kw_only=True)
class Reconstruct(TaskConfig):
    pass


@register_task("reconstruct", Reconstruct)
class ReconstructTask(Task):
    needs = ("decode",)
    example = "autoencoder"

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        output = self.model(batch.images)
        return {"loss": reconstruction_loss(output.reconstruction, batch.images)}
