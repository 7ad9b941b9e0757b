"""Evidence bound: a generative model and its encoder learn together, without labels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.analysis.presence import presence_numbers
from torchcaps.data import Batch, Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.train.tasks.base import Task, TaskConfig, register_task


@dataclass(frozen=True)
class Elbo(TaskConfig):
    """The bound as the model has it."""


@register_task("elbo", Elbo)
class ElboTask(Task):
    config: Elbo

    def check(self, data: Dataset, cutmix: float) -> None:
        super().check(data, cutmix)
        if "bound" not in self.model.provides:
            raise TorchcapsError("The task 'elbo' needs a generative model: one with a bound.")

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Minus the bound of an image, its terms, and the squared error of the drawing."""
        bound = self.model.bound(batch.images, noise=self.training)
        terms = {name: term.mean() for name, term in bound.terms.items()}
        error = (bound.drawn - batch.images).square().flatten(1).sum(1).mean()
        total = torch.stack(list(terms.values())).sum()
        return {"loss": -total, **terms, "error": error.detach()}

    @torch.no_grad()
    def evaluate(self, split: Split, batch_size: int = 500) -> dict[str, float]:
        """The terms at the posterior's means, and what presences carry."""
        return {**super().evaluate(split, batch_size), **presence_numbers(self.model, split)}
