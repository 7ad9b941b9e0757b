"""Multinomial logistic regression on standardized features, with a validated penalty."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.metrics.probes.linear import Linear

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
HELD_OUT = 10
"""One image in so many is held out to choose the penalty; the final fit uses all images."""


@dataclass
class Logistic(Linear):
    """Logistic regression; `ridge` is the chosen penalty after `fit`."""

    penalties: tuple[float, ...] = PENALTIES
    """Penalties to choose from."""

    def _solve(self, x: Tensor, labels: Tensor) -> Tensor:
        held_out = torch.arange(len(x), device=x.device) % HELD_OUT == 0
        classes = int(labels.max()) + 1
        scores = {}
        weight = None  # each search starts at the previous optimum
        for penalty in self.penalties if len(self.penalties) > 1 else ():
            weight = _minimize(x[~held_out], labels[~held_out], classes, penalty, weight)
            right = (x[held_out] @ weight).argmax(1) == labels[held_out]
            scores[penalty] = float(right.double().mean())
        self.ridge = max(self.penalties, key=lambda p: scores.get(p, 0.0))
        return _minimize(x, labels, classes, self.ridge, weight)


@torch.enable_grad()
def _minimize(
    x: Tensor, labels: Tensor, classes: int, penalty: float, start: Tensor | None
) -> Tensor:
    """Weights [D,Y] at the optimum. The loss is convex: `start` changes only the time."""
    first = x.new_zeros(x.shape[1], classes) if start is None else start.clone()
    weight = first.detach().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weight], max_iter=200, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(x @ weight, labels) + penalty * weight[:-1].square().sum()
        value.backward()
        return value

    optimizer.step(loss)  # pyright: ignore[reportArgumentType]
    return weight.detach()
