"""Values against type hints: what a recipe or a configuration may hold."""

import types
from typing import Any, Literal, Union, get_args, get_origin

from torchcaps.errors import TorchcapsError


def check(hint: Any, value: Any, where: str) -> Any:
    """The value as its type (lists become tuples, ints floats), or an error that names it."""
    origin, inner = get_origin(hint), get_args(hint)
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


def _fits(hint: Any, value: Any, where: str) -> bool:
    try:
        check(hint, value, where)
    except TorchcapsError:
        return False
    return True
