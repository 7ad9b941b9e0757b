"""Multinomial logistic regression on standardised features, its penalty chosen on held-out ones."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

PENALTIES = (1e-5, 1e-4, 1e-3, 1e-2)
HELD_OUT = 10
"""One of so many features chooses the penalty, and then learns with the others."""


@dataclass
class Logistic:
    mean: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    std: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    weight: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    penalty: float = 0.0

    def fit(self, features: Tensor, labels: Tensor) -> "Logistic":
        """features [N,D], labels [N]"""
        features = features.double()
        self.mean, self.std = features.mean(0), features.std(0) + 1e-6
        x = self._with_one(features)
        chosen = torch.arange(len(x), device=x.device) % HELD_OUT == 0
        scores = {}
        weight = None
        for penalty in PENALTIES:
            weight = _solved(x[~chosen], labels[~chosen], int(labels.max()) + 1, penalty, weight)
            right = (x[chosen] @ weight).argmax(1) == labels[chosen]
            scores[penalty] = float(right.double().mean())
        self.penalty = max(PENALTIES, key=lambda p: scores[p])
        self.weight = _solved(x, labels, int(labels.max()) + 1, self.penalty, weight)
        return self

    def _with_one(self, features: Tensor) -> Tensor:
        scaled = (features.double() - self.mean) / self.std
        return torch.cat([scaled, scaled.new_ones(len(scaled), 1)], 1)

    def predict(self, features: Tensor) -> Tensor:
        """features [M,D] -> labels [M]"""
        return (self._with_one(features) @ self.weight).argmax(1)

    def score(self, features: Tensor, labels: Tensor) -> float:
        return float((self.predict(features) == labels).double().mean())


@torch.enable_grad()
def _solved(
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
