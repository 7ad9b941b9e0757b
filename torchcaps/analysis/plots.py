"""Figures of a model by name, for `torchcaps plot`, reports and the explorer.

A plot says what it needs of a model and a data set, computes arrays, and makes a chart of them
(`charts.py`), which matplotlib draws into a file and the explorer's page draws itself. It is a
class under `@register_plot`, beside the functions that it uses; the fields of a dataclass are its
options.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch

from torchcaps.analysis.charts import Chart
from torchcaps.data import Batch, Dataset, Split
from torchcaps.errors import TorchcapsError, UsageError, nearest
from torchcaps.metrics.base import missing_need
from torchcaps.models import Model
from torchcaps.registry import Registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Arrays = dict[str, np.ndarray]


@dataclass
class Subject:
    """Subject of a plot: a model, its data set, and the metrics of its training, if known."""

    name: str
    model: Callable[[], Model]
    data: Callable[[], Dataset]
    metrics: list[dict[str, Any]]


class Plot:
    """One kind of figure.

    >>> get_plot("confusion").title
    'Confusion matrix'
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    description: ClassVar[str] = ""
    """Description of the figure."""
    order: ClassVar[int] = 99
    """Its place in a report, the lowest first; -1: not in reports."""
    combines: ClassVar[bool] = False
    """Several models go into one figure, instead of one figure each."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Requirements on a model and its data: names of `metrics.base.NEEDS`, and `labels`."""

    def lacks(self, model: Model, data: Dataset) -> str:
        """Why this figure of this model cannot be made; empty if it can."""
        need = missing_need(model, data, self.needs)
        return f"It needs {need}." if need else ""

    def blank(self, model: Model, data: Dataset) -> str:
        """Why a report shows this sentence instead of the figure; empty if it shows the figure."""
        return ""

    def compute(self, model: Model, data: Dataset) -> Arrays:
        raise NotImplementedError

    def arrays(self, subject: Subject) -> Arrays:
        """The arrays of a subject; plots of a training read its metrics instead of a model."""
        model, data = subject.model(), subject.data()
        if reason := self.lacks(model, data):
            raise TorchcapsError(f"{subject.name}: no figure {self.name!r}. {reason}")
        return self.compute(model, data)

    def chart(self, arrays: dict[str, Arrays]) -> Chart:
        """The chart of one model, or of several by name if the plot combines them."""
        (values,) = arrays.values()
        return self.chart_of(values)

    def chart_of(self, values: Arrays) -> Chart:
        """The chart of one model."""
        raise NotImplementedError

    def figure(self, arrays: dict[str, Arrays]) -> "Figure":
        """The chart by matplotlib."""
        return self.chart(arrays).figure()

    def figures(self, arrays: dict[str, Arrays]) -> "dict[str, Figure]":
        """All figures of the plot, by a suffix of their file's name; usually one."""
        return {"": self.figure(arrays)}


P = TypeVar("P", bound=Plot)
PLOTS = Registry[Plot]("figure", "figures")


def register_plot(name: str) -> Callable[[type[P]], type[P]]:
    """Register a figure under a name for `torchcaps plot`, reports and the explorer.

    >>> @register_plot("empty")
    ... class Empty(Plot):
    ...     title = "Nothing"
    >>> PLOTS.pop("empty").title
    'Nothing'
    """

    def add(kind: type[P]) -> type[P]:
        kind.name = name
        PLOTS[name] = kind()
        return kind

    return add


def report_plots() -> list[Plot]:
    """The plots of a report, in their order.

    >>> len({plot.name for plot in report_plots()}) > 10
    True
    """
    return sorted((p for p in PLOTS.values() if p.order >= 0), key=lambda plot: plot.order)


def get_plot(name: str, **options: Any) -> Plot:
    """A plot by its name, with its options: `get_plot("traversal", image=3)`.

    >>> get_plot("traversal", image=3).title
    'Latent traversal of the first units'
    """
    plot = PLOTS.find(name)
    known = [f.name for f in fields(plot)] if is_dataclass(plot) else []
    for option in options:
        if option not in known:
            hint = nearest(option, known) if known else "It has no options."
            raise UsageError(f"The figure {name!r} has no option {option!r}. {hint}")
    return replace(plot, **options) if options else plot  # pyright: ignore


def evenly(total: int, count: int) -> torch.Tensor:
    """Rows evenly over a split, so that one sorted by class shows every class."""
    return torch.linspace(0, total - 1, min(count, total)).long()


def sample_of(data: Dataset, count: int) -> Split:
    """Test images evenly over the split."""
    return data.test[evenly(len(data.test), count).to(data.test.images.device)]


def few(data: Dataset, count: int) -> Batch:
    """A few test images evenly over the split."""
    return sample_of(data, count).batch(slice(None))
