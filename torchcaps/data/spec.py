"""Parse names with options: NAME[:ARGUMENT][,key=value…].

`rotated:digits,degrees=30`, `crop:4`, `folder:photos,size=64`: data sets and augmentations.
"""

import inspect
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, get_type_hints

from torchcaps.errors import UsageError, nearest

_OPTION = re.compile(r",([A-Za-z_][A-Za-z0-9_]*)=([^,]*)$")


RANGES: dict[str, tuple[float, float]] = {
    "p": (0, 1), "area": (0, 1), "min_area": (0.001, 1), "max_ratio": (1, 100), "size": (1, 1024),
    "copies": (0, 10**6), "frames": (1, 3600), "pixels": (0, 1024), "min_scale": (0.001, 1000),
    "max_scale": (0.001, 1000),
}  # fmt: skip
"""Smallest and largest value of numeric options, by option name."""


def parse(text: str) -> tuple[str, str | None, dict[str, str]]:
    """'rotated:digits,degrees=30' -> ('rotated', 'digits', {'degrees': '30'})"""
    options: dict[str, str] = {}
    full = text
    while match := _OPTION.search(text):
        if match[1] in options:  # ambiguous if a base set or a second metric also has options
            raise UsageError(f"{full!r}: {match[1]} is given twice.")
        options[match[1]] = match[2]
        text = text[: match.start()]
    name, colon, argument = text.partition(":")
    if match := re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=([^,]*)", argument):
        options[match[1]], colon = match[2], ""  # crop:pixels=4 is crop:4
    return name, argument if colon else None, dict(reversed(options.items()))


def call(function: Callable[..., Any], text: str, *fixed: Any, **known: Any) -> Any:
    """Call `function(*fixed, [argument], **known, **options)`; type hints convert the options."""
    name, argument, options = parse(text)
    hints = get_type_hints(function.__init__ if inspect.isclass(function) else function)
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD][len(fixed) :]
    if argument is not None:
        if not positional:
            raise UsageError(f"{name!r} takes no argument after the colon: {text!r}.")
        options = {positional[0].name: argument, **options}
    choices = [p.name for p in parameters[len(fixed) :] if p.name not in known]
    values = {}
    base_options = ""
    for key, value in options.items():
        if "base" in choices and key not in choices and not get_close_matches(key, choices):
            base_options += f",{key}={value}"  # rotated:folder:photos,mode=L: the folder's option
            continue
        if key not in choices:
            hint = nearest(key, choices) if choices else "It has no options."
            raise UsageError(f"{name!r} has no option {key!r}. {hint}")
        try:
            values[key] = _convert(value, hints[key])
        except ValueError:
            kind = getattr(hints[key], "__name__", str(hints[key]))
            raise UsageError(f"{name!r}: {key}={value!r} is not of type {kind}.") from None
        _check(name, key, values[key])
    if base_options:
        default = next(p.default for p in positional if p.name == "base")
        values["base"] = values.get("base", default) + base_options
    missing = [p.name for p in positional if p.default is p.empty and p.name not in values]
    if missing:
        raise UsageError(f"{name!r} needs an argument: {name}:{missing[0].upper()}.")
    return function(*fixed, **known, **values)


def _check(name: str, key: str, value: Any) -> None:
    """Raise if a number is outside the range of its option."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    smallest, largest = RANGES.get(key, (0 if isinstance(value, int) else -1e9, 1e9))
    if not smallest <= value <= largest:  # also for NaN
        raise UsageError(
            f"{name!r}: {key}={value:g} does not lie between {smallest:g} and {largest:g}."
        )


def _convert(value: str, kind: Any) -> Any:
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise ValueError(value)
        return value.lower() == "true"
    return kind(value) if kind in (int, float) else value
