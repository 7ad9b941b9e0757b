"""The task `sparse`: reconstruct images from the few capsules that the ranking keeps."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.data import Batch, Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.losses import reconstruction_loss
from torchcaps.metrics.ranks import rank_numbers
from torchcaps.models.sparse.mask import SparseMask
from torchcaps.models.sparse.model import SparseCapsNet, SparseOutput
from torchcaps.training.task import Task, TaskConfig, register_task


@dataclass(frozen=True, kw_only=True)
class Sparse(TaskConfig):
    period: int = 50
    """Updates between two changes of the boosts."""
    step: float = 0.1
    """Change of a boost at a time."""
    decay: float = 0.99
    """Decay of the moving average of the frequencies."""
    online: bool = False
    """Define rare and common by one standard deviation from the mean, not by fixed ranges."""
    relative: bool = False
    """Multiply boosts instead of adding, and keep the smallest at 1."""


@register_task("sparse", Sparse)
class SparseTask(Task):
    config: Sparse
    model: SparseCapsNet
    needs = ("ranks",)
    example = "sparse"

    def check(self, data: Dataset, cutmix: float) -> None:
        super().check(data, cutmix)
        if self.config.period < 1 or not 0 <= self.config.decay < 1:
            raise TorchcapsError(
                f"task.period={self.config.period} must be at least 1, and "
                f"task.decay={self.config.decay} from 0 to less than 1."
            )

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Sum of squared errors, and the share of images in which each capsule has rank 0."""
        output: SparseOutput = self.model(batch.images)
        assert output.reconstruction is not None
        first = {
            f"first.{number}": (ranking.rank == 0).float().mean(0)
            for number, ranking in enumerate(output.rankings)
        }
        return {"loss": reconstruction_loss(output.reconstruction, batch.images), **first}

    def after_step(self, step: int, parts: dict[str, Tensor]) -> None:
        for number, mask in enumerate(self.model.masks):
            assert isinstance(mask, SparseMask)
            mask.count(parts[f"first.{number}"], self.config.decay)
            if mask.kind != "none" and (step + 1) % self.config.period == 0:
                mask.adapt(self.config.step, self.config.online, self.config.relative)

    @torch.no_grad()
    def evaluate(self, split: Split, batch_size: int = 500) -> dict[str, float]:
        """Mean error per image, and the metrics of the last layer's ranks."""
        loss = torch.zeros((), device=split.images.device)
        for batch in split.batches(batch_size):
            loss += self(batch)["loss"] * len(batch)
        return {"loss": float(loss) / len(split), **rank_numbers(self.model, split)}
