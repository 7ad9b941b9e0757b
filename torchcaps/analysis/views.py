"""Pictures of a model by name, for reports and the explorer.

A view says of a model and a data set why it does not apply, computes arrays, and says what to draw
of them (`drawings.py`), by matplotlib or by a report's page. It is a class under `@register_view`,
beside the functions that it uses.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np
import torch

from torchcaps.analysis.drawings import Drawing
from torchcaps.data import Dataset
from torchcaps.data.dataset import Batch
from torchcaps.errors import Misused, nearest
from torchcaps.models import CapsuleModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Arrays = dict[str, np.ndarray]


class View:
    """One kind of picture."""

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    words: ClassVar[str] = ""
    """What to see in it."""
    place: ClassVar[int] = 99
    """Its place in a report: the lower the earlier."""
    together: ClassVar[bool] = False
    """Whether several models are drawn into one figure, in place of one for each."""

    def applies(self, model: CapsuleModel, data: Dataset) -> str:
        """Why there is nothing to see of this model; empty where there is."""
        raise NotImplementedError

    def compute(self, model: CapsuleModel, data: Dataset) -> Arrays:
        raise NotImplementedError

    def drawing(self, found: dict[str, Arrays]) -> Drawing:
        """The arrays of one model, or of several by name where they are drawn together."""
        raise NotImplementedError

    def draw(self, found: dict[str, Arrays]) -> "Figure":
        """The same by matplotlib."""
        return self.drawing(found).figure()


V = TypeVar("V", bound=View)
_VIEWS: dict[str, View] = {}


def register_view(name: str) -> Callable[[type[V]], type[V]]:
    def add(kind: type[V]) -> type[V]:
        kind.name = name
        _VIEWS[name] = kind()
        return kind

    return add


def views() -> list[View]:
    """All of them, in the order in which a report shows them."""
    return sorted(_VIEWS.values(), key=lambda view: view.place)


def get_view(name: str) -> View:
    if name not in _VIEWS:
        raise Misused(f"There is no view {name!r}. {nearest(name, list(_VIEWS))}")
    return _VIEWS[name]


def lacks(model: CapsuleModel, data: Dataset, *needs: str) -> str:
    """Why a view that needs these does not apply: what a model provides, or labels."""
    reasons = {
        "logits": "It has no classes.",
        "decode": "It has no decoder that draws from capsules.",
        "redraw": "It draws no images.",
        "draw": "It draws no removed patches.",
        "parts": "It has no parts that are drawn.",
    }
    for need in needs:
        if need == "labels":
            if not data.num_classes or data.test.labels.ndim != 1:
                return "Its images have no single label each."
        elif need not in model.provides:
            return reasons[need]
    return ""


def evenly(total: int, count: int) -> torch.Tensor:
    """Rows evenly over a split, so that one sorted by class shows every class."""
    return torch.linspace(0, total - 1, min(count, total)).long()


def few(data: Dataset, count: int) -> Batch:
    """A few test images from the whole of the split."""
    return data.test.batch(evenly(len(data.test), count).to(data.test.images.device))
