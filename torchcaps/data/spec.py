"""The little grammar of names with options: NAME[:ARGUMENT][,key=value…].

`rotated:digits,degrees=30`, `crop:4`, `folder:photos,size=64`: data sets and augmentations.
"""

import inspect
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, get_type_hints

from torchcaps.errors import Misused, nearest

_OPTION = re.compile(r",([A-Za-z_][A-Za-z0-9_]*)=([^,]*)$")


RANGES: dict[str, tuple[float, float]] = {
    "p": (0, 1), "area": (0, 1), "min_area": (0.001, 1), "max_ratio": (1, 100), "size": (1, 1024),
    "copies": (0, 10**6), "frames": (1, 3600), "pixels": (0, 1024), "min_scale": (0.001, 1000),
    "max_scale": (0.001, 1000),
}  # fmt: skip
"""Least and largest value of options that are numbers, wherever an option of that name is."""


def parse(text: str) -> tuple[str, str | None, dict[str, str]]:
    """'rotated:digits,degrees=30' -> ('rotated', 'digits', {'degrees': '30'})"""
    options: dict[str, str] = {}
    whole = text
    while found := _OPTION.search(text):
        if found[1] in options:  # of a set within another, or of a measure's two: whose is it?
            raise Misused(f"{whole!r}: {found[1]} is given twice.")
        options[found[1]] = found[2]
        text = text[: found.start()]
    name, colon, argument = text.partition(":")
    if found := re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=([^,]*)", argument):
        options[found[1]], colon = found[2], ""  # crop:pixels=4 is crop:4
    return name, argument if colon else None, dict(reversed(options.items()))


def call(function: Callable[..., Any], text: str, *fixed: Any, **known: Any) -> Any:
    """Call `function(*fixed, [argument], **known, **options)` with options read by annotation."""
    name, argument, options = parse(text)
    hints = get_type_hints(function.__init__ if inspect.isclass(function) else function)
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD][len(fixed) :]
    if argument is not None:
        if not positional:
            raise Misused(f"{name!r} takes no argument after the colon: {text!r}.")
        options = {positional[0].name: argument, **options}
    choices = [p.name for p in parameters[len(fixed) :] if p.name not in known]
    values = {}
    for_base = ""
    for key, value in options.items():
        if "base" in choices and key not in choices and not get_close_matches(key, choices):
            for_base += f",{key}={value}"  # rotated:folder:photos,mode=L: the folder's option
            continue
        if key not in choices:
            hint = nearest(key, choices) if choices else "It takes none."
            raise Misused(f"{name!r} has no option {key!r}. {hint}")
        try:
            values[key] = _convert(value, hints[key])
        except ValueError:
            kind = getattr(hints[key], "__name__", str(hints[key]))
            raise Misused(f"{name!r}: {key}={value!r} is not of type {kind}.") from None
        _check(name, key, values[key])
    if for_base:
        default = next(p.default for p in positional if p.name == "base")
        values["base"] = values.get("base", default) + for_base
    missing = [p.name for p in positional if p.default is p.empty and p.name not in values]
    if missing:
        raise Misused(f"{name!r} needs an argument: {name}:{missing[0].upper()}.")
    return function(*fixed, **known, **values)


def _check(name: str, key: str, value: Any) -> None:
    """Whole numbers count something; of others those are refused that no image can be made of."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    least, largest = RANGES.get(key, (0 if isinstance(value, int) else -1e9, 1e9))
    if not least <= value <= largest:  # nor does NaN
        raise Misused(f"{name!r}: {key}={value:g} does not lie between {least:g} and {largest:g}.")


def _convert(value: str, kind: Any) -> Any:
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise ValueError(value)
        return value.lower() == "true"
    return kind(value) if kind in (int, float) else value
