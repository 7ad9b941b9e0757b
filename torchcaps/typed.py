"""Values against type hints: what a recipe or a configuration may hold; and the files of such."""

import json
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from torchcaps.errors import TorchcapsError

LARGEST = 50 * 2**20
"""Bytes of a JSON file."""
LONGEST, HIGHEST = 1000, 10**12
"""Entries of a list, and size of a whole number, in a recipe or a configuration."""


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object of a plain file that is not too large; else a ValueError or an OSError."""
    if path.exists() and not path.is_file():
        raise ValueError("not a plain file")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"more than {LARGEST:,} bytes")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("nested without end") from None
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def check(hint: Any, value: Any, where: str) -> Any:
    """The value as its type (lists become tuples, ints floats), or an error that names it."""
    origin, inner = get_origin(hint), get_args(hint)
    _bounded(value, where)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(check(inner[0], v, where) for v in value)
    if origin is Literal:
        if value not in inner:
            choices = ", ".join(map(str, inner))
            raise TorchcapsError(f"{where}: {value!r} is none of {choices}.")
        return value
    if origin in (Union, types.UnionType):
        good = any(_fits(kind, value, where) for kind in inner)
    elif hint is float:
        good = isinstance(value, int | float) and not isinstance(value, bool)
    else:
        good = origin is None and isinstance(value, hint)
        good = good and not (hint is int and isinstance(value, bool))
    if not good:
        raise TorchcapsError(
            f"{where}: {value!r} is not of type {getattr(hint, '__name__', hint)}."
        )
    return float(value) if hint is float else value


def _bounded(value: Any, where: str) -> None:
    if isinstance(value, list | tuple) and len(value) > LONGEST:
        raise TorchcapsError(f"{where}: more than {LONGEST} entries.")
    if isinstance(value, int) and abs(value) > HIGHEST:
        raise TorchcapsError(f"{where}: a number of more than 12 digits.")


def _fits(hint: Any, value: Any, where: str) -> bool:
    try:
        check(hint, value, where)
    except TorchcapsError:
        return False
    return True
