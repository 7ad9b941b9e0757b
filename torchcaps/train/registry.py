"""Recipes by name: functions that return a Recipe; the docstring tells claim and command.

What a run has changed of the recipe whose name it carries is decided here and nowhere else.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torchcaps.data.registry import entry
from torchcaps.data.spec import parse
from torchcaps.errors import Misused, TorchcapsError, nearest
from torchcaps.train.recipe import Recipe, differences, essence
from torchcaps.train.run import Run
from torchcaps.train.tasks import task_class

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
        raise Misused(f"There is no recipe {name!r}. {nearest(name, list(_RECIPES))}")
    found = replace(_RECIPES[name](), name=name)
    if protocol == "ours":
        return found
    if not has_protocol(name, protocol):
        raise TorchcapsError(f"{name} has no protocol {protocol!r} of its own.")
    return replace(_AS_PRINTED[name](found), protocol="paper")


def pretraining_of(recipe: Recipe) -> Recipe | None:
    """The recipe that is trained before this one: by the same protocol where it knows that."""
    if recipe.before not in _RECIPES:
        return None
    known = has_protocol(recipe.before, recipe.protocol)
    return get_recipe(recipe.before, recipe.protocol if known else "ours")


def digest(recipe: Recipe, known_as: str = "") -> str:
    """A name for what makes a recipe this one, its pretraining's included.

    known_as: what its pretraining was called, for lines from before that was renamed
    """
    first = pretraining_of(recipe)
    named = replace(recipe, before=known_as) if known_as else recipe
    whole = {**essence(named), **({"before_digest": digest(first)} if first else {})}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


def revision(recipe: Recipe) -> int:
    """A number that rises whenever code changes what this recipe measures."""
    name, argument, _ = parse(recipe.data.name)
    number = recipe.model.revision + task_class(recipe.task).revision + entry(name).revision
    if argument and entry(name).base:
        number += entry(argument).revision
    return number


def changes(recipe: Recipe) -> list[str]:
    """What a run has changed of the recipe whose name it carries, as `field=value`."""
    if recipe.name not in _RECIPES:
        return [f"name={recipe.name}"]
    known = has_protocol(recipe.name, recipe.protocol)
    found = differences(recipe, get_recipe(recipe.name, recipe.protocol if known else "ours"))
    if recipe.protocol == "paper" and not known:
        found.append("protocol=paper")
    if recipe.start_from and not _is_pretraining(recipe):
        found.append(f"start_from={recipe.start_from}")
    return found


def _is_pretraining(recipe: Recipe) -> bool:
    """Whether the run that a recipe starts from is one of the recipe that belongs before it."""
    first = pretraining_of(recipe)
    try:
        return first is not None and is_run_of(Run.open(recipe.start_from), first)
    except TorchcapsError:
        return False


def is_run_of(run: Run, recipe: Recipe) -> bool:
    """Whether a run was begun with this recipe, wherever and with whatever seed."""
    return run.start().get("digest") == digest(recipe)


def marked(recipe: Recipe) -> Recipe:
    """A paper's recipe that was changed is no run of that paper's row: its protocol says so."""
    changed = recipe.paper and recipe.protocol in ("ours", "paper") and changes(recipe)
    return replace(recipe, protocol="modified") if changed else recipe


def identity(recipe: Recipe) -> dict[str, Any]:
    """What a run's record says of its recipe, as it was asked for."""
    changed = changes(recipe) if recipe.paper else []
    facts = {"digest": digest(recipe), "revision": revision(recipe)}
    return {**facts, **({"modified": changed} if changed else {})}
