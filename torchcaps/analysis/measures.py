"""Numbers about a model on a data set, by name: `linear`, `accuracy:affnist-like:mnist`.

    NAME[:DATA][,option=value…]     options that the measure does not have are the data's

A measure is a small dataclass under `@register_measure`, beside the functions that it uses: its
fields are its options, `metrics` the numbers that it gives, `needs` what it asks of a model. Some
learn something first, from one split of the data, and are then scored on another.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from torchcaps.data import Dataset, Split
from torchcaps.data import load as load_data
from torchcaps.data.dataset import named_as
from torchcaps.data.spec import call, parse
from torchcaps.errors import Misused, TorchcapsError, nearest
from torchcaps.models import CapsuleModel

Told = Callable[[str, int, int], None]


@dataclass
class Context:
    """Where a measure is taken."""

    root: str | Path | None = None
    """The folder of the data sets; None: the platform's cache folder."""
    label: str = ""
    """The data set's name with its options, as it was asked for."""
    cache: Path | None = None
    """A folder for what is costly to compute again, where there is one."""
    memory: dict[Any, Any] = field(default_factory=dict)
    """What measures of one model share while they are taken."""
    told: Told | None = None
    """Called with what is being done, how much of it is, and of how much."""


class Measure:
    """What is measured; subclasses are dataclasses, their fields the options."""

    name: ClassVar[str] = ""
    metrics: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[tuple[str, ...]] = ("logits",)
    single_labels: ClassVar[bool] = True
    """Whether every image must have one label."""

    def __init__(self, *_: Any, **__: Any):
        self.context = Context()

    def __post_init__(self):
        self.context = Context()

    def check(self, model: CapsuleModel, data: Dataset) -> None:
        """Say so where the options do not fit the model or the data, before anything is trained."""

    @property
    def provenance(self) -> dict[str, str]:
        """What a line says of how the number was got, beside its data."""
        return {}

    def learn(self, model: CapsuleModel, data: Dataset) -> None:
        """Learn what is to be scored, from a split that the measure names; most have nothing to."""

    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        """The numbers of a split of the data, by metric."""
        raise NotImplementedError

    def counted(self, split: Split) -> int:
        """How many images the numbers are of."""
        return len(split)


M = TypeVar("M", bound=type[Measure])
_MEASURES: dict[str, type[Measure]] = {}


def register_measure(name: str, metrics: Iterable[str]) -> Callable[[M], M]:
    """Make a measure known by a name, with the metrics that it gives."""

    def add(kind: M) -> M:
        kind.name, kind.metrics = name, tuple(metrics)
        _MEASURES[name] = kind
        return kind

    return add


def measures() -> dict[str, type[Measure]]:
    return dict(sorted(_MEASURES.items()))


def measure_of(metric: str) -> str:
    """The name of the measure that gives a metric; empty for those of a task alone."""
    return next((n for n, kind in _MEASURES.items() if metric in kind.metrics), "")


@dataclass
class Taken:
    """A measure with its data set; it learns once and can be scored on several splits."""

    measure: Measure
    data: Dataset
    label: str
    """The data set's name with its options, as it was asked for."""
    learned: bool = False

    def __post_init__(self):
        self.measure.context.label = self.label

    def check(self, model: CapsuleModel) -> None:
        """Say so where the model or the data lacks what the measure needs."""
        name, family = self.measure.name, model.config.family
        lacking = [need for need in self.measure.needs if need not in model.provides]
        if lacking:
            words = {"logits": "classes", "decode": "a decoder", "redraw": "a decoder",
                     "parts": "generative capsules"}  # fmt: skip
            what = words.get(lacking[0], lacking[0])
            raise TorchcapsError(f"{name} measures a model with {what}; this {family} has none.")
        if self.measure.single_labels and self.data.test.labels.ndim != 1:
            raise TorchcapsError(f"{name} needs one label an image; {self.label} has several.")
        training = model.training
        model.eval()
        self.measure.check(model, self.data)
        model.train(training)

    def take(self, model: CapsuleModel, split: str = "test") -> list[dict[str, Any]]:
        """A line for each number."""
        model.eval()
        if not self.learned:
            self.measure.learn(model, self.data)
            self.learned = True
        chosen: Split = getattr(self.data, split)
        numbers = self.measure.score(model, self.data, chosen)
        facts = {"data": self.label, "split": split, "n": self.measure.counted(chosen)}
        facts |= self.measure.provenance
        return [{**facts, "metric": metric, "value": value} for metric, value in numbers.items()]

    def anew(
        self,
        device: torch.device,
        cache: Path | None = None,
        memory: dict[Any, Any] | None = None,
        told: Told | None = None,
    ) -> "Taken":
        """The same measure with its data on a device, and nothing learned yet."""
        context = self.measure.context
        context.cache, context.told = cache, told
        context.memory = {} if memory is None else memory
        return replace(self, data=self.data.to(device), learned=False)


def take_all(
    taken: Iterable[Taken],
    model: CapsuleModel,
    device: torch.device,
    cache: Path | None = None,
    told: Told | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """Lines of each of several measures of one model, which share what they learn."""
    memory: dict[Any, Any] = {}
    for one in taken:
        yield one.anew(device, cache, memory, told).take(model)


def read_measure(text: str) -> tuple[Measure, str]:
    """'linear:rotated:digits,degrees=30' -> (the measure, 'rotated:digits,degrees=30')"""
    name, argument, options = parse(text)
    if name not in _MEASURES:
        raise Misused(f"There is no measure {name!r}. {nearest(name, list(_MEASURES))}")
    kind = _MEASURES[name]
    own = [f.name for f in fields(kind)] if is_dataclass(kind) else []
    words = {key: f",{key}={value}" for key, value in options.items()}
    others = [key for key in words if key not in own]
    if others and argument is None:
        hint = nearest(others[0], own) if own else "It takes none."
        raise Misused(f"The measure {name!r} has no option {others[0]!r}. {hint}")
    made = call(kind, name + "".join(words[key] for key in words if key in own))
    return made, (argument or "") + "".join(words[key] for key in others)


def prepare(
    texts: Iterable[str], data: Dataset, label: str, root: str | Path | None = None, seed: int = 0
) -> list[Taken]:
    """Measures, each with its own data set or else with `data`, which is called `label`."""
    found = []
    for text in texts:
        measure, name = read_measure(text)
        measure.context.root = root
        other = load_data(name, root, seed=seed) if name else data
        if other.classes and data.classes:
            other = named_as(other, data.classes)
        if other.image_shape != data.image_shape or other.num_classes != data.num_classes:
            raise TorchcapsError(
                f"{name} (in `measures`) has images {other.image_shape} in {other.num_classes} "
                f"classes, {data.name} {data.image_shape} in {data.num_classes}; name other sets, "
                "or none: --measures"
            )
        found.append(Taken(measure, other, name or label))
    return found
