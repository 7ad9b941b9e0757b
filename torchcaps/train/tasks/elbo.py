"""Evidence bound: a generative model and its encoder learn together, without labels."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchcaps.analysis.presence import presence_numbers
from torchcaps.data import Batch, Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.models import CapsuleModel
from torchcaps.models.base import Bound
from torchcaps.models.generative import Generative
from torchcaps.models.seeding import seed_objects
from torchcaps.train.tasks.base import Task, TaskConfig, register_task

SEEN = 4000
"""Training images from which objects are seeded."""


@dataclass(frozen=True)
class Elbo(TaskConfig):
    """Left as they are, the bound as the model has it; the others help where one object is on."""

    usage: float = 0.0
    """Weight of a bonus for batches that use all objects alike, which falls to zero."""
    usage_steps: int = 0
    """Updates until that bonus is gone."""
    soft: float = 1.0
    """How much softer than its posterior the choice of an object is to begin with."""
    soft_steps: int = 0
    """Updates until the choice is its posterior."""
    seed_at: int = 0
    """Updates without objects, after which these start from a clustering of parts; 0: none."""

    @property
    def helps(self) -> bool:
        return bool(self.usage or self.soft != 1 or self.seed_at)


def softened(joint: Tensor, softness: Tensor) -> tuple[Tensor, Tensor]:
    """The bound of a choice that is softer than its posterior, and the choice.

    joint [B,J] -> [B], [B,J]; softness 1: the log-sum-exp, and the posterior
    """
    choice = (joint / softness).log_softmax(1)
    return (choice.exp() * (joint - choice)).sum(1), choice.exp()


@register_task("elbo", Elbo)
class ElboTask(Task):
    config: Elbo
    clock: Tensor
    """Updates so far."""

    def __init__(self, model: CapsuleModel, config: Elbo):
        super().__init__(model, config)
        self.register_buffer("clock", torch.zeros(()), persistent=config.helps)

    def check(self, data: Dataset, cutmix: float) -> None:
        super().check(data, cutmix)
        if "bound" not in self.model.provides:
            raise TorchcapsError("The task 'elbo' needs a generative model: one with a bound.")
        c = self.config
        one = getattr(self.model.config, "objects", "") == "one"
        if c.helps and not one:
            raise TorchcapsError(
                "task.usage, task.soft and task.seed_at are for a model with --model.objects one."
            )
        if c.usage < 0 or c.soft < 1 or min(c.usage_steps, c.soft_steps, c.seed_at) < 0:
            raise TorchcapsError("The task elbo: usage from 0, soft from 1, steps from 0.")

    def begin(self, data: Dataset) -> None:
        self.data = data

    def _helped(self, bound: Any, terms: dict[str, Tensor]) -> None:
        """Change the terms as long as the objects need help."""
        c = self.config
        softness = c.soft + (1 - c.soft) * self._passed(c.soft_steps)
        parts, choice = softened(bound.joint, softness)
        there = (self.clock >= c.seed_at).to(parts)
        terms["parts"] = there * parts.mean()
        used = choice.mean(0)
        entropy = -(used * used.clamp(min=1e-12).log()).sum()
        terms["usage"] = there * c.usage * (1 - self._passed(c.usage_steps)) * entropy

    def _passed(self, steps: int) -> Tensor:
        return (self.clock / max(steps, 1)).clamp(max=1)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Minus the bound of an image, its terms, and the squared error of the drawing."""
        bound: Bound = self.model.bound(batch.images, noise=self.training)
        terms = {name: term.mean() for name, term in bound.terms.items()}
        if self.training and self.config.helps:
            self._helped(bound, terms)
        error = (bound.drawn - batch.images).square().flatten(1).sum(1).mean()
        total = torch.stack(list(terms.values())).sum()
        return {"loss": -total, **terms, "error": error.detach()}

    def after_step(self, step: int, parts: dict[str, Tensor]) -> None:
        if not self.config.helps:
            return
        self.clock.fill_(step + 1)
        if step + 1 == self.config.seed_at:
            assert isinstance(self.model, Generative)
            images = self.data.train.images
            rows = torch.arange(min(SEEN, len(images)), device=images.device)
            seed_objects(self.model, self.data.training(rows, rows).images)

    @torch.no_grad()
    def evaluate(self, split: Split, batch_size: int = 500) -> dict[str, float]:
        """The terms at the posterior's means, and what presences carry."""
        return {**super().evaluate(split, batch_size), **presence_numbers(self.model, split)}
