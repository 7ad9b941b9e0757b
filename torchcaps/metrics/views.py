"""Agreement of several views at test time: consecutive frames of one object classified together."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from torchcaps.data import Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.metrics.accuracy import claims, labeled
from torchcaps.metrics.base import Metric, register_metric

if TYPE_CHECKING:
    from torchcaps.models import Model

VIEWS = 3


def consecutive(frames: Tensor, labels: Tensor, count: int) -> Tensor:
    """Rows of every `count` frames of one class that follow each other. [N], [N] -> [W,count]

    >>> consecutive(torch.tensor([7, 3, 5, 0]), torch.tensor([0, 0, 0, 1]), 2)
    tensor([[1, 2],
            [2, 0]])
    """
    order = frames.argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]
    windows = order.unfold(0, count, 1)
    return windows[labels[windows[:, 0]] == labels[windows[:, -1]]]


@register_metric("views", ("views3_accuracy",))
@dataclass
class Views(Metric):
    """Accuracy with the mean class probabilities of three consecutive frames of an object."""

    def check(self, model: "Model", data: Dataset) -> None:
        if "frame" not in data.test.factors:
            raise TorchcapsError(
                f"views needs data with a frame number and one object a class, such as "
                f"fruits-views; {data.name} has no frame numbers."
            )

    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        frames = labeled(split).factors["frame"]
        probabilities, labels = claims(model, split)
        windows = consecutive(frames, labels, VIEWS)
        if not len(windows):
            raise TorchcapsError(f"views: no class of {data.name} has {VIEWS} frames.")
        predicted = probabilities[windows].mean(1).argmax(-1)
        right = predicted == labels[windows[:, 0]]
        return {"views3_accuracy": float(right.float().mean())}
