"""Baselines on the data of a classifier: simple classifiers on what the classifier itself sees.

A model on a frozen pretrained backbone is compared on its feature maps, any other one on images of
16x16 pixels. To add a baseline: an entry of `BASELINES`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.data import Dataset, Split
from torchcaps.metrics.accuracy import labeled
from torchcaps.metrics.probes import Logistic

if TYPE_CHECKING:
    from torchcaps.models import Model

SIDE = 16
"""Side in pixels of the images of baselines on pixels."""
FITTED = 5000
"""Most training images of a baseline, evenly over the split."""
PENALTY = 1e-2
"""Penalty of the softmax linear probe on standardized inputs."""


class Learner(Protocol):
    """A classifier on maps [N,C,H,W]; images of pixels are maps of one position."""

    def fit(self, maps: Tensor, labels: Tensor) -> Self: ...

    def predict(self, maps: Tensor) -> Tensor:
        """Labels [N]."""
        ...


@dataclass
class Pooled:
    """A classifier of vectors on maps averaged over positions."""

    learner: Any

    def fit(self, maps: Tensor, labels: Tensor) -> Self:
        self.learner.fit(maps.flatten(2).mean(2), labels)
        return self

    def predict(self, maps: Tensor) -> Tensor:
        return self.learner.predict(maps.flatten(2).mean(2))


@dataclass
class _Standardized:
    """Inputs with the mean and deviation of the training vectors [N,D] or [N,L,D] taken out."""

    mean: Tensor = field(default_factory=lambda: torch.empty(0))
    std: Tensor = field(default_factory=lambda: torch.empty(0))

    def scaled(self, vectors: Tensor, learn: bool = False) -> Tensor:
        if learn:
            rows = vectors.flatten(0, -2)
            self.mean, self.std = rows.mean(0), rows.std(0, correction=0) + 1e-6
        return (vectors - self.mean) / self.std


@dataclass
class ClassMeans(_Standardized):
    """The class whose mean is nearest, on standardized vectors."""

    means: Tensor = field(default_factory=lambda: torch.empty(0))
    classes: Tensor = field(default_factory=lambda: torch.empty(0))

    def fit(self, vectors: Tensor, labels: Tensor) -> Self:
        """vectors [N,D], labels [N]"""
        x, self.classes = self.scaled(vectors, learn=True), labels.unique()
        self.means = torch.stack([x[labels == number].mean(0) for number in self.classes])
        return self

    def predict(self, vectors: Tensor) -> Tensor:
        return self.classes[torch.cdist(self.scaled(vectors), self.means).argmin(1)]


@dataclass
class MLP(_Standardized):
    """One hidden layer, trained by AdamW with a one-cycle schedule; the same for the same images.

    At least 100 and at most 400 steps, which are 16 epochs where that is between.
    """

    hidden: int = 256
    batch_size: int = 64
    lr: float = 4e-3
    net: nn.Module | None = None

    def fit(self, vectors: Tensor, labels: Tensor) -> Self:
        """vectors [N,D], labels [N]"""
        x, classes = self.scaled(vectors, learn=True), int(labels.max()) + 1
        batch = min(self.batch_size, len(x))
        steps = max(100, min(400, 16 * len(x) // batch))
        devices = [x.device] if x.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), torch.enable_grad():
            torch.manual_seed(0)
            net = nn.Sequential(
                nn.Linear(x.shape[-1], self.hidden), nn.ReLU(), nn.Linear(self.hidden, classes)
            ).to(x.device)
            optimizer = torch.optim.AdamW(net.parameters(), self.lr)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr, total_steps=steps)
            order = torch.cat([torch.randperm(len(x)) for _ in range(-(-steps * batch // len(x)))])
            for rows in order[: steps * batch].to(x.device).split(batch):
                optimizer.zero_grad()
                F.cross_entropy(self.scores(net(x[rows])), labels[rows]).backward()
                optimizer.step()
                schedule.step()
        self.net = net.eval()
        return self

    def scores(self, outputs: Tensor) -> Tensor:
        """Class scores [N,Y] of what the network gives."""
        return outputs

    @torch.no_grad()
    def predict(self, vectors: Tensor) -> Tensor:
        assert self.net is not None
        return self.scores(self.net(self.scaled(vectors))).argmax(1)


class _PositionMLP(MLP):
    """The MLP on rows of positions [N,L,D]."""

    def scores(self, outputs: Tensor) -> Tensor:
        return outputs.log_softmax(-1).logsumexp(1)


class Vote:
    """An MLP at each position of a map; the positions' class probabilities are averaged."""

    def __init__(self):
        self.learner = _PositionMLP()

    def fit(self, maps: Tensor, labels: Tensor) -> Self:
        self.learner.fit(maps.flatten(2).mT, labels)
        return self

    def predict(self, maps: Tensor) -> Tensor:
        return self.learner.predict(maps.flatten(2).mT)


VOTE = "vote of positions"
SOFTMAX = "softmax linear probe"
BASELINES: dict[str, Callable[[], Learner]] = {
    "nearest class mean": lambda: Pooled(ClassMeans()),
    SOFTMAX: lambda: Pooled(Logistic(penalties=(PENALTY,))),
    "MLP": lambda: Pooled(MLP()),
    VOTE: Vote,
}
"""Classifiers by name, in the order of tables; the vote is of maps with several positions."""


def small(images: Tensor) -> Tensor:
    """Images [B,C,H,W] as maps of one position, of 16x16 pixels [B,D,1,1]."""
    return F.interpolate(images.float(), (SIDE, SIDE), mode="area").flatten(1)[..., None, None]


@dataclass(frozen=True)
class Inputs:
    """What baselines are fitted on and scored on."""

    name: str
    """What the baselines see, in words."""
    train: Tensor
    """Maps [N,C,H,W] of the training images."""
    labels: Tensor
    test: Tensor

    def accuracies(
        self, labels: Tensor, names: tuple[str, ...] = ()
    ) -> Iterator[tuple[str, float]]:
        """Accuracy of each baseline on the test images, whose labels are given."""
        for name, make in BASELINES.items():
            if name == VOTE and self.train.shape[2:].numel() == 1:  # the same as the MLP
                continue
            if not names or name in names:
                predicted = make().fit(self.train, self.labels).predict(self.test)
                yield name, float((predicted == labels).double().mean())


def inputs(data: Dataset, test: Split, model: "Model | None" = None) -> Inputs | None:
    """Training images of a data set and labeled images of a split as maps; None without training
    images with one label each.

    model: decides what is seen: the maps of its frozen backbone, or pixels
    """
    several = data.train.labels.ndim != 1
    rows = None if several else (data.train.labels >= 0).nonzero()[:, 0]
    if rows is None or not len(rows):
        return None
    rows = rows[torch.linspace(0, len(rows) - 1, min(FITTED, len(rows))).round().long()]
    device, labels = test.labels.device, data.train.labels[rows].to(test.labels.device)
    if model is not None and model.frozen and data.render is None:
        train, scored = (model.with_features(split) for split in (data.train, test))
        maps = train.images[rows].to(device).float(), labels, labeled(scored).images.float()
        return Inputs("features of the backbone", *maps)
    parts = [small(data.training(part, part).images) for part in rows.split(1000)]
    scored = torch.cat([small(batch.images) for batch in labeled(test).batches(1000)])
    return Inputs(f"{SIDE}x{SIDE} pixels", torch.cat(parts).to(device), labels, scored)
