"""The task `elbo`: train a generative model and its encoder together, without labels."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchcaps.data import Batch, Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.models import Model
from torchcaps.models.base import Bound
from torchcaps.models.generative.metrics import presence_numbers
from torchcaps.models.generative.model import Generative
from torchcaps.models.generative.seeding import seed_objects
from torchcaps.training.task import Task, TaskConfig, register_task

SEED_IMAGES = 4000
"""Training images from which objects are initialized."""


@dataclass(frozen=True, kw_only=True)
class Elbo(TaskConfig):
    """The defaults train the plain bound; other values need a model with objects="one"."""

    usage: float = 0.0
    """Initial weight of a bonus for equal use of all objects in a batch; it decays to zero."""
    usage_steps: int = 0
    """Updates until that bonus is zero."""
    soft: float = 1.0
    """Initial temperature of the posterior over objects; 1: the posterior itself."""
    soft_steps: int = 0
    """Updates until that temperature is 1."""
    seed_at: int = 0
    """Train without objects for this many updates, then initialize them by k-means of the parts; 0:
    train with objects from the start."""

    @property
    def helps(self) -> bool:
        return bool(self.usage or self.soft != 1 or self.seed_at)


def softened(joint: Tensor, softness: Tensor) -> tuple[Tensor, Tensor]:
    """Bound under a posterior over objects at this temperature, and that posterior.

    joint [B,J] -> [B], [B,J]; softness 1: the log-sum-exp and the exact posterior
    """
    log_posterior = (joint / softness).log_softmax(1)
    return (log_posterior.exp() * (joint - log_posterior)).sum(1), log_posterior.exp()


@register_task("elbo", Elbo)
class ElboTask(Task):
    config: Elbo
    needs = ("bound",)
    example = "generative"
    clock: Tensor
    """Number of updates so far."""

    def __init__(self, model: Model, config: Elbo):
        super().__init__(model, config)
        self.register_buffer("clock", torch.zeros(()), persistent=config.helps)

    def check(self, data: Dataset, cutmix: float) -> None:
        super().check(data, cutmix)
        c = self.config
        one = getattr(self.model.config, "objects", "") == "one"
        if c.helps and not one:
            raise TorchcapsError(
                "task.usage, task.soft and task.seed_at need a model with --model.objects one."
            )
        if c.usage < 0 or c.soft < 1 or min(c.usage_steps, c.soft_steps, c.seed_at) < 0:
            raise TorchcapsError(
                f"Task elbo got usage={c.usage}, usage_steps={c.usage_steps}, soft={c.soft}, "
                f"soft_steps={c.soft_steps}, seed_at={c.seed_at}: soft must be at least 1, the "
                "others at least 0."
            )

    def begin(self, data: Dataset) -> None:
        self.data = data

    def _anneal(self, bound: Any, terms: dict[str, Tensor]) -> None:
        """Replace the term of the parts by its annealed form and add the usage bonus."""
        c = self.config
        softness = c.soft + (1 - c.soft) * self._progress(c.soft_steps)
        parts, posterior = softened(bound.joint, softness)
        seeded = (self.clock >= c.seed_at).to(parts)
        terms["parts"] = seeded * parts.mean()
        usage = posterior.mean(0)
        entropy = -(usage * usage.clamp(min=1e-12).log()).sum()
        terms["usage"] = seeded * c.usage * (1 - self._progress(c.usage_steps)) * entropy

    def _progress(self, steps: int) -> Tensor:
        return (self.clock / max(steps, 1)).clamp(max=1)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Negative bound of an image, its terms, and the squared error of the reconstruction."""
        bound: Bound = self.model.bound(batch.images, noise=self.training)
        terms = {name: term.mean() for name, term in bound.terms.items()}
        if self.training and self.config.helps:
            self._anneal(bound, terms)
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
            rows = torch.arange(min(SEED_IMAGES, len(images)), device=images.device)
            seed_objects(self.model, self.data.training(rows, rows).images)

    @torch.no_grad()
    def evaluate(self, split: Split, batch_size: int = 500) -> dict[str, float]:
        """Terms at the posterior's means, and the metrics of presences."""
        return {**super().evaluate(split, batch_size), **presence_numbers(self.model, split)}
