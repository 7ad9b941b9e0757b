"""Numbers about a model on a data set, by name: `linear`, `accuracy:affnist-like:mnist`.

    NAME[:DATA][,option=value…]     options that the metric does not have are the data's

A metric is a small dataclass under `@register_metric`, beside the functions that it uses: its
fields are its options, `values` the numbers that it gives, `needs` what it asks of a model. Some
learn from one split of the data first, and are then scored on another.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch

from torchcaps.data import Dataset, Split
from torchcaps.data import load as load_data
from torchcaps.data.dataset import named_as
from torchcaps.data.spec import call, parse
from torchcaps.errors import TorchcapsError, UsageError, nearest
from torchcaps.registry import Registry

if TYPE_CHECKING:
    from torchcaps.models import Model

ProgressFn = Callable[[str, int, int], None]
"""Called with what is being computed, how much of it is done, and the total."""
NEEDS = {
    "bound": "an evidence bound",
    "decode": "a decoder that draws from capsules",
    "feature-decoder": "a decoder of features (--model.reconstruction features)",
    "inpaint": "a decoder of removed patches",
    "logits": "classes",
    "parts": "parts with templates",
    "passes": "class scores after each pass",
    "ranks": "ranked capsules",
    "reconstruct": "a decoder",
    "sample": "a prior to sample from",
    "segments": "points that belong to objects",
}
"""Requirements of metrics, plots and tasks on a model (`Model.provides`), in words."""


def missing_need(model: "Model", data: Dataset | None, needs: Iterable[str]) -> str:
    """Missing parts of `needs` in a model or its data, in words; empty if it has all.

    needs: names of `NEEDS`, and `labels`: a single label for each image
    """
    for need in needs:
        if need == "labels":
            if data is not None and (not data.num_classes or data.test.labels.ndim != 1):
                return "a single label for each image"
        elif need not in model.provides:
            return NEEDS[need]
    return ""


@dataclass
class Context:
    """Circumstances of a metric."""

    root: str | Path | None = None
    """The folder of the data sets; None: the platform's cache folder."""
    label: str = ""
    """The data set's name with its options, as the user gave it."""
    cache: Path | None = None
    """A folder for results that are costly to compute again, if there is one."""
    memory: dict[Any, Any] = field(default_factory=dict)
    """Results that the metrics of one model share."""
    progress: ProgressFn | None = None


class Metric:
    """A number, or several, of a model; subclasses are dataclasses, their fields the options.

    >>> METRICS["knn"]().needs
    ()
    """

    name: ClassVar[str] = ""
    values: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ("logits",)
    single_labels: ClassVar[bool] = True
    """Each image must have one label."""

    def __init__(self, *_: Any, **__: Any):
        self.context = Context()

    def __post_init__(self):
        self.context = Context()

    def check(self, model: "Model", data: Dataset) -> None:
        """Raise if the options do not fit the model or the data, before anything is trained."""

    @property
    def provenance(self) -> dict[str, str]:
        """Facts that a result line states beside the data."""
        return {}

    def learn(self, model: "Model", data: Dataset) -> None:
        """Learn from a split that the metric names; most metrics learn nothing."""

    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        """The numbers of a split of the data, by name."""
        raise NotImplementedError

    def counted(self, split: Split) -> int:
        """Number of images that the numbers are of."""
        return len(split)


M = TypeVar("M", bound=type[Metric])
METRICS = Registry[type[Metric]]("metric", "metrics")


def register_metric(name: str, values: Iterable[str]) -> Callable[[M], M]:
    """Register a metric by its name, with the names of the numbers that it gives.

    >>> @register_metric("ink", ["ink"])
    ... class Ink(Metric):
    ...     def score(self, model, data, split):
    ...         return {"ink": split.images.float().mean().item()}
    >>> METRICS.pop("ink").values
    ('ink',)
    """

    def add(kind: M) -> M:
        kind.name, kind.values = name, tuple(values)
        METRICS[name] = kind
        return kind

    return add


def metric_of(value: str) -> str:
    """The name of the metric that gives a number; empty for those of a task."""
    return next((name for name, kind in METRICS.items() if value in kind.values), "")


@dataclass
class PreparedMetric:
    """A metric with its data set; it learns once and can be scored on several splits."""

    metric: Metric
    data: Dataset
    label: str
    """The data set's name with its options, as the user gave it."""
    learned: bool = False

    def __post_init__(self):
        self.metric.context.label = self.label

    def check(self, model: "Model") -> None:
        """Raise if the model or the data lacks what the metric needs."""
        name, family = self.metric.name, model.config.family
        if need := missing_need(model, None, self.metric.needs):
            raise TorchcapsError(f"The metric {name} needs a model with {need}; {family} has none.")
        if self.metric.single_labels and self.data.test.labels.ndim != 1:
            raise TorchcapsError(f"{name} needs one label an image; {self.label} has several.")
        training = model.training
        model.eval()
        self.metric.check(model, self.data)
        model.train(training)

    def evaluate(self, model: "Model", split: str = "test") -> list[dict[str, Any]]:
        """A line for each number."""
        model.eval()
        if not self.learned:
            self.metric.learn(model, self.data)
            self.learned = True
        rows: Split = getattr(self.data, split)
        numbers = self.metric.score(model, self.data, rows)
        facts = {"data": self.label, "split": split, "n": self.metric.counted(rows)}
        facts |= self.metric.provenance
        return [{**facts, "metric": name, "value": value} for name, value in numbers.items()]

    def fresh(
        self,
        device: torch.device,
        cache: Path | None = None,
        memory: dict[Any, Any] | None = None,
        progress: ProgressFn | None = None,
    ) -> "PreparedMetric":
        """The same metric with its data on a device, before it has learned."""
        context = self.metric.context
        context.cache, context.progress = cache, progress
        context.memory = {} if memory is None else memory
        return replace(self, data=self.data.to(device), learned=False)


def evaluate_all(
    metrics: Iterable[PreparedMetric],
    model: "Model",
    device: torch.device,
    cache: Path | None = None,
    progress: ProgressFn | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """The lines of each of several metrics of one model, which share what they learn."""
    memory: dict[Any, Any] = {}
    for metric in metrics:
        yield metric.fresh(device, cache, memory, progress).evaluate(model)


def read_metric(text: str) -> tuple[Metric, str]:
    """'linear:rotated:digits,degrees=30' -> (the metric, 'rotated:digits,degrees=30')

    >>> read_metric("linear:rotated:digits,degrees=30")[1]
    'rotated:digits,degrees=30'
    """
    name, argument, options = parse(text)
    kind = METRICS.find(name)
    known = [f.name for f in fields(kind)] if is_dataclass(kind) else []
    texts = {key: f",{key}={value}" for key, value in options.items()}
    others = [key for key in texts if key not in known]
    if others and argument is None:
        hint = nearest(others[0], known) if known else "It has no options."
        raise UsageError(f"The metric {name!r} has no option {others[0]!r}. {hint}")
    metric = call(kind, name + "".join(texts[key] for key in texts if key in known))
    return metric, (argument or "") + "".join(texts[key] for key in others)


def prepare(
    texts: Iterable[str], data: Dataset, label: str, root: str | Path | None = None, seed: int = 0
) -> list[PreparedMetric]:
    """Metrics, each with its own data set or else with `data`, which is called `label`.

    >>> digits = torchcaps.data.load("digits")
    >>> [metric.label for metric in prepare(["knn"], digits, "digits")]
    ['digits']
    """
    metrics = []
    for text in texts:
        metric, name = read_metric(text)
        metric.context.root = root
        other = load_data(name, root, seed=seed) if name else data
        if other.classes and data.classes:
            other = named_as(other, data.classes)
        if other.image_shape != data.image_shape or other.num_classes != data.num_classes:
            raise TorchcapsError(
                f"{name} (in --metrics) has images {other.image_shape} in {other.num_classes} "
                f"classes, {data.name} {data.image_shape} in {data.num_classes}: the metrics of a "
                "run need data of the same size."
            )
        metrics.append(PreparedMetric(metric, other, name or label))
    return metrics
