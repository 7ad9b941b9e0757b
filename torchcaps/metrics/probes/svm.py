"""Support vector machine with an RBF kernel; pairs of classes are fitted in parallel.

One machine per pair of classes, as in libsvm. scikit-learn fits them in parallel processes; on a
GPU with room for the kernel matrix the same algorithm (`kernels/smo.py`) takes seconds. Decisions
are computed in torch, on any device, with a gradient with respect to the features.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from torchcaps.errors import TorchcapsError
from torchcaps.kernels import why_no_kernel


def _fit_pair(x: np.ndarray, y: np.ndarray, c: float, gamma: float) -> tuple[Any, ...]:
    """Fit two classes, y in {0, 1}. -> rows of support vectors, their coefficients, intercept"""
    from sklearn.svm import SVC

    options: Any = {"C": c, "gamma": gamma, "tol": 1e-3, "cache_size": 1000}
    machine = SVC(**options).fit(x, y)
    return machine.support_, machine.dual_coef_[0], float(machine.intercept_[0])


@dataclass
class SVM:
    """RBF support vector machine with fit, predict and score; c and gamma are scikit-learn's.

    gamma: 0 means 1 / (features x variance), scikit-learn's "scale". jobs: processes; 0: all.
    """

    c: float = 100.0
    gamma: float = 0.1
    jobs: int = 0
    impl: Literal["auto", "scikit-learn", "triton"] = "auto"
    progress: Callable[[int, int], None] | None = None
    """Callback (fitted pairs, all pairs)."""
    vectors: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    """Support vectors of all pairs [V,D]."""
    weights: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    """Coefficients of the support vectors in each pair [V,P]."""
    intercepts: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    pairs: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    """Classes of each pair [P,2]; a positive decision means the second."""
    num_classes: int = 0

    def fit(self, features: Tensor, labels: Tensor) -> "SVM":
        """Fit all pairs of classes. features [N,D], labels [N]"""
        classes = labels.unique().tolist()
        if len(classes) < 2:
            raise TorchcapsError("A support vector machine needs at least two classes.")
        x = features.double()
        self.gamma = self.gamma or float(1 / (x.shape[1] * x.var(correction=0).clamp(min=1e-12)))
        self.num_classes = int(classes[-1]) + 1
        self.pairs = torch.tensor(list(combinations(classes, 2)))
        fit = self._fit_on_device if self._fits_on_device(x) else self._fit_in_processes
        weights, self.intercepts = fit(x, labels)
        used = weights.any(1)
        self.vectors, self.weights = x[used], weights[used]
        self.pairs = self.pairs.to(x.device)
        return self

    def _fits_on_device(self, x: Tensor) -> bool:
        if self.impl == "triton":
            return True
        if self.impl != "auto" or x.device.type != "cuda" or why_no_kernel(x.device):
            return False
        from torchcaps.kernels.smo import needed

        return needed(len(x)) < torch.cuda.mem_get_info(x.device)[0]

    def _fit_on_device(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        from torchcaps.kernels.smo import fit_pairs  # needs Triton

        weights, intercepts = fit_pairs(x, labels, self.pairs.to(x.device), self.c, self.gamma)
        if self.progress:
            self.progress(len(self.pairs), len(self.pairs))
        return weights, intercepts

    def _fit_in_processes(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        from joblib import Parallel, delayed

        points, y = x.cpu().numpy(), labels.cpu().numpy()
        pairs = self.pairs.tolist()
        rows = [np.flatnonzero((y == a) | (y == b)) for a, b in pairs]
        jobs = (
            delayed(_fit_pair)(points[r], (y[r] == b).astype(int), self.c, self.gamma)
            for r, (_, b) in zip(rows, pairs, strict=True)
        )
        weights, intercepts = np.zeros((len(points), len(pairs))), np.zeros(len(pairs))
        solved: Any = Parallel(n_jobs=self.jobs or -1, return_as="generator")(jobs)
        for p, (support, coefficients, intercept) in enumerate(solved):
            weights[rows[p][support], p], intercepts[p] = coefficients, intercept
            if self.progress:
                self.progress(p + 1, len(pairs))
        return torch.from_numpy(weights).to(x.device), torch.from_numpy(intercepts).to(x.device)

    def to(self, device: torch.device | str, dtype: torch.dtype = torch.float32) -> "SVM":
        """Move the fitted machine to a device."""
        for name in ("vectors", "weights", "intercepts"):
            setattr(self, name, getattr(self, name).to(device, dtype))
        self.pairs = self.pairs.to(device)
        return self

    def decide(self, features: Tensor) -> Tensor:
        """Decision value of each pair, with gradients. features [M,D] -> [M,P]"""
        x, v = features.to(self.vectors), self.vectors
        distance = x.square().sum(1, keepdim=True) + v.square().sum(1) - 2 * x @ v.T
        kernel = torch.exp(-self.gamma * distance.clamp(min=0))
        return kernel @ self.weights + self.intercepts

    def scores(self, features: Tensor) -> Tensor:
        """Differentiable substitute for votes: tanh of decisions, summed by class. -> [M,Y]"""
        decisions = self.decide(features)
        scores = decisions.new_zeros(len(features), self.num_classes)
        scores = scores.index_add(1, self.pairs[:, 1], decisions.tanh())
        return scores.index_add(1, self.pairs[:, 0], -decisions.tanh())

    def predict(self, features: Tensor) -> Tensor:
        """Predict the class with most votes; ties go to the first, as in libsvm. -> labels [M]"""
        predictions = []
        for chunk in features.split(1000):
            winners = torch.where(self.decide(chunk) > 0, self.pairs[:, 1], self.pairs[:, 0])
            votes = torch.nn.functional.one_hot(winners, self.num_classes).sum(1)
            predictions.append(votes.argmax(1))
        return torch.cat(predictions)

    def score(self, features: Tensor, labels: Tensor) -> float:
        predictions = self.predict(features)
        return float((predictions == labels.to(predictions.device)).float().mean())
