"""Multinomial logistic regression on standardised features, its penalty chosen on held-out ones."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.probes.linear import Linear

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
HELD_OUT = 10
"""One of so many features chooses the penalty, and then learns with the others."""


@dataclass
class Logistic(Linear):
    """Its `ridge` is the penalty that was chosen."""

    def _solved(self, x: Tensor, labels: Tensor) -> Tensor:
        chosen = torch.arange(len(x), device=x.device) % HELD_OUT == 0
        classes = int(labels.max()) + 1
        scores = {}
        weight = None
        for penalty in PENALTIES:
            weight = _descended(x[~chosen], labels[~chosen], classes, penalty, weight)
            right = (x[chosen] @ weight).argmax(1) == labels[chosen]
            scores[penalty] = float(right.double().mean())
        self.ridge = max(PENALTIES, key=lambda p: scores[p])
        return _descended(x, labels, classes, self.ridge, weight)


@torch.enable_grad()
def _descended(
    x: Tensor, labels: Tensor, classes: int, penalty: float, start: Tensor | None
) -> Tensor:
    """The weights [D,Y] at the optimum, which is one, wherever the search starts."""
    first = x.new_zeros(x.shape[1], classes) if start is None else start.clone()
    weight = first.detach().requires_grad_()
    search = torch.optim.LBFGS(
        [weight], max_iter=200, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        search.zero_grad()
        found = F.cross_entropy(x @ weight, labels) + penalty * weight[:-1].square().sum()
        found.backward()
        return found

    search.step(loss)  # pyright: ignore[reportArgumentType]
    return weight.detach()
