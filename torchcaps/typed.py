"""Check the values of recipes and configurations against type hints, and read their JSON files."""

import dataclasses
import json
import types
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from torchcaps.errors import TorchcapsError

MAX_BYTES = 50 * 2**20
"""Largest JSON file."""
MAX_ENTRIES, MAX_INTEGER = 1000, 10**12
"""Longest list and largest integer of a recipe or a configuration."""


class Between(NamedTuple):
    """Bounds of a number, as an annotation of its field: `Annotated[int, Between(1, 100)]`."""

    least: float
    most: float


def check_bounds(values: Any, where: str = "") -> None:
    """Raise unless all numbers of a dataclass are within the bounds of their annotations."""
    hints = get_type_hints(type(values), include_extras=True)
    for field in dataclasses.fields(values):
        bounds, value = bounds_of(hints[field.name]), getattr(values, field.name)
        for number in value if isinstance(value, tuple) else (value,):
            if bounds is None or isinstance(number, str):
                continue
            if not bounds.least <= number <= bounds.most:  # NaN is in no range
                raise TorchcapsError(
                    f"{where}{field.name}={number}: it must be at least {bounds.least:g} and at "
                    f"most {bounds.most:g}."
                )


def bounds_of(hint: Any) -> Between | None:
    """The bounds in an annotation, also inside a tuple or a union."""
    if get_origin(hint) is Annotated:
        return next((m for m in get_args(hint)[1:] if isinstance(m, Between)), None)
    return next(filter(None, map(bounds_of, get_args(hint))), None)


def read_object(path: Path, problem: str = "damaged") -> dict[str, Any]:
    """Read a JSON object from a regular file; an error states the problem and its reason."""
    try:
        return _object(path)
    except (OSError, ValueError) as error:
        raise TorchcapsError(f"{path}: {problem} ({error}).") from None


def _object(path: Path) -> dict[str, Any]:
    if path.exists() and not path.is_file():
        raise ValueError("not a plain file")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES:,} bytes")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("not an object")
    return content


def check(hint: Any, value: Any, where: str) -> Any:
    """Return the value as its type (lists become tuples, ints floats) or raise an error."""
    origin, inner = get_origin(hint), get_args(hint)
    _check_size(value, where)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(check(inner[0], v, where) for v in value)
    if origin is Literal:
        if value not in inner:
            choices = ", ".join(map(str, inner))
            raise TorchcapsError(f"{where}: {value!r} is not one of {choices}.")
        return value
    if origin in (Union, types.UnionType):
        valid = any(_fits(kind, value, where) for kind in inner)
    elif hint is float:
        valid = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        valid = origin is None and isinstance(value, hint)
        valid = valid and not (hint is int and isinstance(value, bool))
    if not valid:
        raise TorchcapsError(
            f"{where}: {value!r} is not of type {getattr(hint, '__name__', hint)}."
        )
    return float(value) if hint is float else value


def _check_size(value: Any, where: str) -> None:
    if isinstance(value, list | tuple) and len(value) > MAX_ENTRIES:
        raise TorchcapsError(f"{where}: {len(value)} entries; at most {MAX_ENTRIES} are allowed.")
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        raise TorchcapsError(f"{where}: an integer above {MAX_INTEGER:,} in size.")


def _fits(hint: Any, value: Any, where: str) -> bool:
    try:
        check(hint, value, where)
    except TorchcapsError:
        return False
    return True
