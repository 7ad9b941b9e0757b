"""k-means clusters, matched one-to-one to classes (Hungarian matching)."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass
class KMeans:
    """k-means with one cluster per class; labels only name the clusters."""

    seed: int = 0
    model: Any = None
    names: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=int))

    def fit(self, features: Tensor, labels: Tensor) -> "KMeans":
        """features [N,D], labels [N]"""
        from scipy.optimize import linear_sum_assignment
        from sklearn.cluster import KMeans as Clusters

        y = labels.cpu().numpy()
        classes = int(y.max()) + 1
        options: Any = {"n_init": 10, "random_state": self.seed}
        self.model = Clusters(classes, **options)
        cluster = self.model.fit_predict(features.cpu().double().numpy())
        table = np.zeros((classes, classes))
        np.add.at(table, (cluster, y), 1)
        rows, columns = linear_sum_assignment(-table)
        self.names = columns[np.argsort(rows)]
        return self

    def predict(self, features: Tensor) -> Tensor:
        """features [M,D] -> labels [M]"""
        cluster = self.model.predict(features.cpu().double().numpy())
        return torch.from_numpy(self.names[cluster])

    def score(self, features: Tensor, labels: Tensor) -> float:
        return float((self.predict(features) == labels.cpu()).float().mean())
