"""Recipes by name: functions that return a Recipe; the docstring tells claim, command, cost."""

from collections.abc import Callable
from dataclasses import replace

from torchcaps.errors import TorchcapsError, nearest
from torchcaps.train.recipe import Recipe

_RECIPES: dict[str, Callable[[], Recipe]] = {}


def recipe(name: str) -> Callable[[Callable[[], Recipe]], Callable[[], Recipe]]:
    def add(function: Callable[[], Recipe]) -> Callable[[], Recipe]:
        if not function.__doc__:
            raise TypeError(f"the recipe {name} has no docstring")
        _RECIPES[name] = function
        return function

    return add


def recipes() -> dict[str, Callable[[], Recipe]]:
    return dict(sorted(_RECIPES.items()))


def get_recipe(name: str) -> Recipe:
    if name not in _RECIPES:
        raise TorchcapsError(f"There is no recipe {name!r}. {nearest(name, list(_RECIPES))}")
    return replace(_RECIPES[name](), name=name)
