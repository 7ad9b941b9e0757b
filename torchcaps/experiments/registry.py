"""Recipes by name: functions that return a Recipe; the docstring tells claim, command, cost."""

from collections.abc import Callable
from dataclasses import replace

from torchcaps.errors import TorchcapsError, nearest
from torchcaps.train.recipe import Recipe

_RECIPES: dict[str, Callable[[], Recipe]] = {}
_AS_PRINTED: dict[str, Callable[[Recipe], Recipe]] = {}
"""How a recipe changes under `--protocol paper`."""


def recipe(name: str) -> Callable[[Callable[[], Recipe]], Callable[[], Recipe]]:
    def add(function: Callable[[], Recipe]) -> Callable[[], Recipe]:
        if not function.__doc__:
            raise TypeError(f"the recipe {name} has no docstring")
        _RECIPES[name] = function
        return function

    return add


def add_recipe(
    name: str, claim: str, made: Recipe, printed: Callable[[Recipe], Recipe] | None = None
) -> None:
    """Register a recipe that a table makes in a loop; printed: as its paper did it."""

    def function() -> Recipe:
        return made

    function.__doc__ = f"{claim}\n\n    torchcaps train {name} --record"
    recipe(name)(function)
    if printed is not None:
        _AS_PRINTED[name] = printed


def recipes() -> dict[str, Callable[[], Recipe]]:
    return dict(sorted(_RECIPES.items()))


def has_protocol(name: str, protocol: str) -> bool:
    return protocol == "ours" or (protocol == "paper" and name in _AS_PRINTED)


def get_recipe(name: str, protocol: str = "ours") -> Recipe:
    if name not in _RECIPES:
        raise TorchcapsError(f"There is no recipe {name!r}. {nearest(name, list(_RECIPES))}")
    found = replace(_RECIPES[name](), name=name)
    if protocol == "ours":
        return found
    if not has_protocol(name, protocol):
        raise TorchcapsError(f"{name} has no protocol {protocol!r} of its own.")
    return replace(_AS_PRINTED[name](found), protocol="paper")
