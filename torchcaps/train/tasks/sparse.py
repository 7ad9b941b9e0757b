"""Sparse unsupervised capsules: drawing the image from the few capsules that a ranking leaves."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.analysis.ranks import rank_numbers
from torchcaps.data import Batch, Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.layers.sparse import SparseMask
from torchcaps.losses import reconstruction_loss
from torchcaps.models.sparse import SparseCapsNet, SparseOutput
from torchcaps.train.tasks.base import Task, TaskConfig, register_task


@dataclass(frozen=True)
class Sparse(TaskConfig):
    period: int = 50
    """Updates between two changes of the boosts."""
    step: float = 0.1
    """How much a boost changes at a time."""
    decay: float = 0.99
    """How much of a frequency is kept from one update to the next."""
    online: bool = False
    """Whether rare and common are a deviation from the mean frequency, in place of fixed ranges."""
    relative: bool = False
    """Whether a boost changes by a share of itself and the smallest is 1, so that none winds up."""


@register_task("sparse", Sparse)
class SparseTask(Task):
    config: Sparse
    model: SparseCapsNet

    def check(self, data: Dataset, cutmix: float) -> None:
        super().check(data, cutmix)
        if "ranks" not in self.model.provides:
            raise TorchcapsError("The task 'sparse' needs a model whose capsules are ranked.")
        if self.config.period < 1 or not 0 <= self.config.decay < 1:
            raise TorchcapsError("task.period is at least 1, task.decay from 0 to less than 1.")

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """The sum of squared errors, and how often each capsule of each layer came first."""
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
        """The mean error of an image, and how the last layer's ranks are shared out."""
        loss = torch.zeros((), device=split.images.device)
        for batch in split.batches(batch_size):
            loss += self(batch)["loss"] * len(batch)
        return {"loss": float(loss) / len(split), **rank_numbers(self.model, split)}
