"""A support vector machine with an RBF kernel, fitted pair by pair in parallel processes.

Classes are told apart two by two, as libsvm does it, so the pairs can be fitted side by side; their
machines are scikit-learn's. Decisions are computed here, in torch: on any device, and with a
gradient with respect to the features.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.errors import TorchcapsError


def _fit_pair(x: np.ndarray, y: np.ndarray, c: float, gamma: float) -> tuple[Any, ...]:
    """Two classes, y in {0, 1} -> rows of support vectors, their coefficients, the intercept."""
    from sklearn.svm import SVC

    options: Any = {"C": c, "gamma": gamma, "tol": 1e-3, "cache_size": 1000}
    machine = SVC(**options).fit(x, y)
    return machine.support_, machine.dual_coef_[0], float(machine.intercept_[0])


@dataclass
class SVM:
    """fit, predict, score; C and gamma as scikit-learn names them.

    gamma: 0 stands for 1 / (entries x variance), scikit-learn's "scale". jobs: processes; 0: all.
    """

    c: float = 100.0
    gamma: float = 0.1
    jobs: int = 0
    progress: Callable[[int, int], None] | None = None
    """Called with the pairs that are fitted and how many there are."""
    vectors: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    """Support vectors of any pair [V,N]."""
    weights: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    """Their coefficients in each pair [V,P]."""
    intercepts: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    pairs: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    """Classes of each pair [P,2]; a positive decision is the second."""
    num_classes: int = 0

    def fit(self, features: Tensor, labels: Tensor) -> "SVM":
        """features [N,D], labels [N]"""
        from joblib import Parallel, delayed

        x, y = features.cpu().double().numpy(), labels.cpu().numpy()
        classes = np.unique(y)
        if len(classes) < 2:
            raise TorchcapsError("A support vector machine needs at least two classes.")
        self.gamma = self.gamma or float(1 / (x.shape[1] * max(x.var(), 1e-12)))
        self.num_classes = int(classes.max()) + 1
        pairs = list(combinations(classes.tolist(), 2))
        rows = [np.flatnonzero((y == a) | (y == b)) for a, b in pairs]
        jobs = (
            delayed(_fit_pair)(x[r], (y[r] == b).astype(int), self.c, self.gamma)
            for r, (_, b) in zip(rows, pairs, strict=True)
        )
        found: list[Any] = []
        for done in Parallel(n_jobs=self.jobs or -1, return_as="generator")(jobs):
            found.append(done)
            if self.progress:
                self.progress(len(found), len(pairs))
        used = np.unique(np.concatenate([r[f[0]] for r, f in zip(rows, found, strict=True)]))
        place = np.zeros(len(x), dtype=int)
        place[used] = np.arange(len(used))
        weights = np.zeros((len(used), len(pairs)))
        for p, (r, (support, coefficients, _)) in enumerate(zip(rows, found, strict=True)):
            weights[place[r[support]], p] = coefficients
        self.vectors, self.weights = torch.from_numpy(x[used]), torch.from_numpy(weights)
        self.intercepts = torch.tensor([f[2] for f in found], dtype=torch.float64)
        self.pairs = torch.tensor(pairs)
        return self

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> "SVM":
        """The fitted machine on a device."""
        for name in ("vectors", "weights", "intercepts"):
            setattr(self, name, getattr(self, name).to(device, dtype))
        self.pairs = self.pairs.to(device)
        return self

    def decide(self, features: Tensor) -> Tensor:
        """The decision of each pair, with gradients. features [M,D] -> [M,P]"""
        x, v = features.to(self.vectors), self.vectors
        apart = x.square().sum(1, keepdim=True) + v.square().sum(1) - 2 * x @ v.T
        kernel = torch.exp(-self.gamma * apart.clamp(min=0))
        return kernel @ self.weights + self.intercepts

    def scores(self, features: Tensor) -> Tensor:
        """How much each class is ahead in its pairs, a smooth stand-in for votes. -> [M,Y]"""
        decisions = self.decide(features)
        scores = decisions.new_zeros(len(features), self.num_classes)
        scores = scores.index_add(1, self.pairs[:, 1], decisions.tanh())
        return scores.index_add(1, self.pairs[:, 0], -decisions.tanh())

    def predict(self, features: Tensor) -> Tensor:
        """The class with most votes; of equals the first, as libsvm has it. -> labels [M]"""
        found = []
        for part in features.split(1000):
            ahead = self.decide(part) > 0
            winners = torch.where(ahead, self.pairs[:, 1], self.pairs[:, 0])
            votes = torch.nn.functional.one_hot(winners, self.num_classes).sum(1)
            found.append(votes.argmax(1))
        return torch.cat(found)

    def score(self, features: Tensor, labels: Tensor) -> float:
        said = self.predict(features)
        return float((said == labels.to(said.device)).float().mean())
