"""The space of a sweep: fields of a recipe, each with a list of values or a range."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from itertools import product
from typing import Any, get_type_hints

import numpy as np

from torchcaps.errors import TorchcapsError, UsageError, nearest
from torchcaps.models.base import SIZES
from torchcaps.training.recipe import NAMES, Recipe, from_dict, to_dict
from torchcaps.training.setup import check_recipe
from torchcaps.typed import check

Values = dict[str, Any]
"""Fields of a recipe by their full names, with the values of one trial."""
FIXED = {*NAMES, *(f"model.{name}" for name in SIZES), "record", "skip_test", "stop_on"}
"""Fields that a sweep cannot vary."""


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included; log: uniform on a logarithmic scale."""

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def at(self, share: float) -> float:
        """The number at a share in [0,1) of the range."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        if not self.whole:
            value = low + share * (high - low)
            return float(f"{math.exp(value) if self.log else value:.6g}")
        if self.log:
            low, high = math.log(self.low - 0.5), math.log(self.high + 0.5)
            return min(int(self.high), max(int(self.low), round(math.exp(low + share * (high - low)))))  # fmt: skip # noqa: E501
        return int(self.low) + int(share * (self.high - self.low + 1))


Space = dict[str, tuple[Any, ...] | Range]


def read_over(words: Sequence[str]) -> dict[str, str]:
    """FIELD=VALUES of the command line by field."""
    over: dict[str, str] = {}
    for word in words:
        field, equals, values = word.partition("=")
        if not equals or not values:
            raise UsageError(
                f"--over {word}: write FIELD=VALUES, for example optimizer.lr=1e-3,1e-2."
            )
        if field in over:
            raise UsageError(f"--over: {field} is given twice.")
        over[field] = values
    if not over:
        raise UsageError("Name the fields: --over optimizer.lr=log:1e-4..1e-1.")
    return over


def read_space(recipe: Recipe, over: Mapping[str, Any]) -> Space:
    """The space in its types. over: by field `a,b,c`, `lo..hi`, `log:lo..hi`, a list or a Range.

    Every value is tried in the recipe, so that wrong ones are found before anything starts.
    """
    space: Space = {}
    for name, values in over.items():
        field = name.removeprefix("--").replace("-", "_")
        hint = _hint(recipe, field)
        space[field] = typed = _read(hint, values, field)
        for value in (typed.low, typed.high) if isinstance(typed, Range) else typed:
            check_recipe(with_values(recipe, {field: value}))
    return space


def _hint(recipe: Recipe, field: str) -> Any:
    """The type of a field; raises if there is no such field."""
    owner: Any = recipe
    *groups, name = field.split(".")
    for group in groups:
        owner = getattr(owner, group, None)
    names = [f.name for f in fields(owner)] if is_dataclass(owner) else []
    if name not in names or is_dataclass(getattr(owner, name)):
        raise UsageError(f"--over: unknown field {field!r}. {nearest(field, _fields(recipe), 0)}")
    if field in FIXED:
        raise UsageError(f"--over: a sweep cannot vary {field}.")
    return get_type_hints(type(owner))[name]


def _fields(value: Any, prefix: str = "") -> list[str]:
    names = []
    for field in fields(value):
        inner = getattr(value, field.name)
        name = prefix + field.name
        names += _fields(inner, f"{name}.") if is_dataclass(inner) else [name]
    return names


def _read(hint: Any, values: Any, field: str) -> tuple[Any, ...] | Range:
    if isinstance(values, str) and (match := re.fullmatch(r"(log:)?(.+?)\.\.(.+)", values)):
        low, high = (_value(hint, end, field) for end in match.groups()[1:])
        values = Range(low, high, bool(match[1]))
    if isinstance(values, Range):
        low, high = (check(hint, end, f"--over: {field}") for end in (values.low, values.high))
        if hint not in (int, float):
            raise UsageError(f"--over: {field} is not a number; list its values.")
        if not low < high or (values.log and low <= 0):
            raise UsageError(
                f"--over: {field}: a range goes from a smaller to a larger number"
                + (", both above 0." if values.log else ".")
            )
        return Range(low, high, values.log)
    texts = values.split(",") if isinstance(values, str) else list(values)
    choices = tuple(_value(hint, text, field) for text in texts)
    if not choices or len(set(map(str, choices))) < len(choices):
        raise UsageError(f"--over: {field}: give different values.")
    return choices


def _value(hint: Any, text: Any, field: str) -> Any:
    """A value in the field's type, from what was typed."""
    if isinstance(text, str):
        try:
            return check(hint, json.loads(text), field)
        except (ValueError, TorchcapsError):
            pass  # a word, such as the name of a routing
    try:
        return check(hint, text, field)
    except TorchcapsError as error:
        raise UsageError(f"--over: {error}") from None


def with_values(recipe: Recipe, values: Values) -> Recipe:
    """The recipe of a trial."""
    plain = to_dict(recipe)
    for field, value in values.items():
        *groups, name = field.split(".")
        owner = plain
        for group in groups:
            owner = owner[group]
        owner[name] = value
    return from_dict(plain, "--over")


def grid(space: Space) -> Iterator[Values]:
    """Every combination of listed values."""
    choices = [values for values in space.values() if not isinstance(values, Range)]
    return (dict(zip(space, combination, strict=True)) for combination in product(*choices))


def is_grid(space: Space) -> bool:
    return not any(isinstance(values, Range) for values in space.values())


def sample(space: Space, seed: int, number: int) -> Values:
    """Random values: a function of the sweep's seed and the trial's number."""
    shares = np.random.default_rng((seed, number)).random(len(space)).tolist()
    return {
        field: values.at(share) if isinstance(values, Range) else values[int(share * len(values))]
        for (field, values), share in zip(space.items(), shares, strict=True)
    }


def as_json(space: Space) -> dict[str, Any]:
    return {f: asdict(v) if isinstance(v, Range) else list(v) for f, v in space.items()}


def from_json(values: dict[str, Any]) -> Space:
    return {f: Range(**v) if isinstance(v, dict) else tuple(v) for f, v in values.items()}
