"""Drawing the image again, without a label."""

from dataclasses import dataclass

from torch import Tensor

from torchcaps.data import Batch, Dataset
from torchcaps.errors import TorchcapsError
from torchcaps.losses import reconstruction_loss
from torchcaps.training.task import Task, TaskConfig, register_task


@dataclass(frozen=True, kw_only=True)
class Reconstruct(TaskConfig):
    pass


@register_task("reconstruct", Reconstruct)
class ReconstructTask(Task):
    def check(self, data: Dataset, cutmix: float) -> None:
        super().check(data, cutmix)
        if "decode" not in self.model.provides:
            raise TorchcapsError("The task 'reconstruct' needs a model with a decoder.")

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        output = self.model(batch.images)
        return {"loss": reconstruction_loss(output.reconstruction, batch.images)}
