"""A classifier as scikit-learn has them: `CapsuleClassifier().fit(X, y).predict(X)`.

It trains in memory, without a run folder; for a record, checkpoints and a report there is
`torchcaps.fit`.
"""

import warnings
from dataclasses import replace
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
from torchcaps.errors import TorchcapsWarning
from torchcaps.models import Model
from torchcaps.models.predict import class_probabilities
from torchcaps.models.registry import build, model_config
from torchcaps.models.size import check_size
from torchcaps.training.defaults import defaults
from torchcaps.training.optim import make_optimizer
from torchcaps.training.recipe import OptimizerSpec
from torchcaps.training.tasks import Classify, make_task

SMALLEST = 28
"""Side of the smallest image that a network is given; smaller ones are enlarged to it."""
MAX_OUTSIDE = 0.01
"""Largest share of values that may lie far outside the range that `fit` saw."""
MIN_SPAN = 1 / 64
"""Smallest range of values, as a share of the range that `fit` saw, without a warning."""


class CapsuleClassifier(ClassifierMixin, BaseEstimator):
    """A capsule network on images [N,H,W], [N,H,W,C], or rows of pixels [N,HW] of square images.

    Values can have any scale: every pixel is standardized by its mean and deviation in `fit`.

    model: a name of `torchcaps.list_models()`; epochs, batch_size, lr: of Adam, with a rate that
    falls to zero; random_state: the seed, None for 0; device: "auto" takes a GPU where there is one

    >>> X, y = torch.rand(40, 64).numpy(), [0, 1] * 20
    >>> classifier = CapsuleClassifier("convnet-avg-small", epochs=1).fit(X, y)
    >>> classifier.predict_proba(X).shape
    (40, 2)
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
        self.mean_, deviation = numeric.mean(0), numeric.std(0)
        varies = deviation > 1e-10 * max(abs(self.low_), abs(self.high_))
        self.scale_ = np.where(varies, deviation, np.inf)  # a constant pixel says nothing
        self.shape_ = np.shape(X)[1:]
        self._check_square()
        images = self._images(X)
        labels = torch.from_numpy(numbers.astype(np.int64))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed())
            self.network_ = self._learn(images, labels)
        if not all(value.isfinite().all() for value in self.network_.state_dict().values()):
            raise ValueError(f"The loss was not finite: give a smaller lr than {self.lr:g}.")
        self.n_iter_ = self.epochs
        return self

    def _check_square(self) -> None:
        """Warn of rows that are not the pixels of a square image."""
        side = isqrt(self.shape_[0] - 1) + 1
        if len(self.shape_) == 1 and side**2 != self.shape_[0]:
            warnings.warn(
                f"X has {self.shape_[0]} columns, which are no square image: they are filled up "
                f"to {side}x{side}. Give [N,H,W] if they are pixels.",
                TorchcapsWarning,
                stacklevel=3,
            )

    def _check_range(self, X: np.ndarray) -> None:
        """Raise or warn if the values are scaled otherwise than in `fit`."""
        values = np.asarray(X, np.float64)
        low, high, span = float(values.min()), float(values.max()), self.high_ - self.low_
        text = f"X runs from {low:g} to {high:g}; `fit` saw {self.low_:g} to {self.high_:g}."
        far = (values < self.low_ - span / 2) | (values > self.high_ + span / 2)
        if far.mean() > MAX_OUTSIDE:
            raise ValueError(f"{text} Scale both in the same way.")
        if 0 < high - low < MIN_SPAN * span:
            warnings.warn(f"{text} Are both scaled in the same way?", TorchcapsWarning, 3)

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
        check_size(self.model, config, trained=True)
        network = build(config)
        if "logits" not in network.provides:
            raise ValueError(f"model={self.model!r} tells no classes: give one that does.")
        usual = defaults(self.model, config, labelled=True).task
        if isinstance(usual, Classify):  # decoders draw in [0,1], not standardized images
            usual = replace(usual, reconstruction=0.0)
        task = make_task(network, usual).to(device).train()
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
        """Any of the layouts as standardized squares [N,C,S,S]."""
        scores = (np.asarray(X, np.float64) - self.mean_) / self.scale_
        values = torch.from_numpy(scores.astype(np.float32))
        if values.ndim == 2:
            side = isqrt(values.shape[1] - 1) + 1
            values = F.pad(values, (0, side * side - values.shape[1])).unflatten(1, (side, side))
        if values.ndim == 3:
            values = values[..., None]
        if values.ndim != 4 or values.shape[-1] not in (1, 3):
            raise ValueError(f"X of shape {tuple(values.shape)}: give [N,H,W] or [N,H,W,C].")
        values = values.movedim(-1, 1)
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
        self._check_range(X)
        parts = self._images(X).split(256)
        return np.concatenate(
            [class_probabilities(self.network_.encode(part)).double().numpy() for part in parts]
        )

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each image. -> [N]"""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X).argmax(1)]
