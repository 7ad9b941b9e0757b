"""A classifier as scikit-learn has them: `CapsuleClassifier().fit(X, y).predict(X)`.

It trains in memory, without a run folder; for a record, checkpoints and a report there is
`torchcaps.fit`.
"""

from math import isqrt
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor
from torch.nn import functional as F

from torchcaps.data import Batch
from torchcaps.models import Model
from torchcaps.models.predict import class_probabilities
from torchcaps.models.registry import build, model_config
from torchcaps.training.defaults import defaults
from torchcaps.training.optim import make_optimizer
from torchcaps.training.recipe import OptimizerSpec
from torchcaps.training.tasks import make_task

SMALLEST = 28
"""Side of the smallest image that a network is given; smaller ones are enlarged to it."""


class CapsuleClassifier(ClassifierMixin, BaseEstimator):
    """A capsule network on images [N,H,W], [N,H,W,C], or rows of pixels [N,HW].

    model: a name of `torchcaps.list_models()`; epochs, batch_size, lr: of Adam, with a rate that
    falls to zero; random_state: the seed, None for 0; device: "auto" takes a GPU where there is one
    """

    def __init__(
        self,
        model: str = "capsnet-small",
        epochs: int = 20,
        batch_size: int = 32,
        lr: float = 1e-3,
        random_state: int | np.random.RandomState | None = 0,
        device: str = "auto",
    ):
        self.model = model
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.random_state = random_state
        self.device = device

    def fit(self, X: Any, y: Any) -> "CapsuleClassifier":
        """X: images; y: their labels, of any kind"""
        if self.epochs < 1 or self.batch_size < 1 or not 0 < self.lr < np.inf:
            raise ValueError("epochs and batch_size are at least 1, and lr is above 0.")
        X, y = validate_data(self, X, y, allow_nd=True, dtype="numeric")  # pyright: ignore
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("y has one class; a classifier needs two.")
        numeric = np.asarray(X, np.float64)
        self.low_, self.high_ = float(numeric.min()), float(numeric.max())
        self.shape_ = np.shape(X)[1:]
        images = self._images(X)
        labels = torch.from_numpy(numbers.astype(np.int64))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed())
            self.network_ = self._learn(images, labels)
        if not all(value.isfinite().all() for value in self.network_.state_dict().values()):
            raise ValueError(f"The loss was not finite: give a smaller lr than {self.lr:g}.")
        self.n_iter_ = self.epochs
        return self

    def _seed(self) -> int:
        if self.random_state is None or isinstance(self.random_state, int | np.integer):
            return int(self.random_state or 0)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _learn(self, images: Tensor, labels: Tensor) -> Model:
        device = self._device()
        channels, side = images.shape[1], images.shape[2]
        config = model_config(
            self.model, in_channels=channels, image_size=side, num_classes=len(self.classes_)
        )
        network = build(config)
        if "logits" not in network.provides:
            raise ValueError(f"model={self.model!r} tells no classes: give one that does.")
        task = (
            make_task(network, defaults(self.model, config, labelled=True).task).to(device).train()
        )
        optimizer = make_optimizer(task, OptimizerSpec(kind="adam", lr=self.lr))
        batch = min(self.batch_size, len(images))
        steps = len(images) // batch
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs * steps)
        for _ in range(self.epochs):
            order = torch.randperm(len(images))
            for rows in order[: steps * batch].split(batch):
                loss = task(Batch(images[rows].to(device), labels[rows].to(device)))["loss"]
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
        return task.model.cpu().eval()

    def _device(self) -> str:
        if self.device != "auto":
            return self.device
        return "cuda" if torch.cuda.is_available() else "cpu"

    def _images(self, X: np.ndarray) -> Tensor:
        """Any of the layouts as squares [N,C,S,S] in [0,1], by the range that `fit` saw."""
        values = torch.from_numpy(np.asarray(X, np.float32))
        if values.ndim == 2:
            side = isqrt(values.shape[1] - 1) + 1
            values = F.pad(values, (0, side * side - values.shape[1])).unflatten(1, (side, side))
        if values.ndim == 3:
            values = values[..., None]
        if values.ndim != 4 or values.shape[-1] not in (1, 3):
            raise ValueError(f"X of shape {tuple(values.shape)}: give [N,H,W] or [N,H,W,C].")
        values = values.movedim(-1, 1)
        values = ((values - self.low_) / max(self.high_ - self.low_, 1e-12)).clamp(0, 1)
        side = max(SMALLEST, *values.shape[2:])
        if values.shape[2:] != (side, side):
            values = F.interpolate(values, (side, side), mode="nearest")
        return values

    @torch.no_grad()
    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, in the order of `classes_`. -> [N,Y]"""
        check_is_fitted(self)
        X = validate_data(self, X, allow_nd=True, dtype="numeric", reset=False)  # pyright: ignore
        if np.shape(X)[1:] != self.shape_:
            raise ValueError(f"X has images of {np.shape(X)[1:]}; `fit` had {self.shape_}.")
        parts = self._images(X).split(256)
        return np.concatenate(
            [class_probabilities(self.network_.encode(part)).double().numpy() for part in parts]
        )

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each image. -> [N]"""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(1)]
