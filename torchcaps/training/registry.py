"""Recipes by name: functions that return a Recipe; the docstring tells claim and command.

What a run has changed of the recipe whose name it carries is decided here and nowhere else.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from torchcaps.data.registry import entry
from torchcaps.data.spec import parse
from torchcaps.errors import TorchcapsError, UsageError, nearest
from torchcaps.training.recipe import Recipe, differences, essence
from torchcaps.training.run import Run
from torchcaps.training.tasks import task_class

PAPERS = ("generative", "inverted", "mcae", "robustness", "sparse", "viewpoints")
_HOMES = {"demo": "torchcaps.training.demo", "zoo": "torchcaps.training.bundled"}
_HOMES |= {paper: f"torchcaps.papers.{paper}" for paper in PAPERS}
"""The first part of a recipe's name: the module that registers such recipes when it is imported."""
_RECIPES: dict[str, Callable[[], Recipe]] = {}
_AS_PRINTED: dict[str, Callable[[Recipe], Recipe]] = {}
"""Changes to a recipe under `--protocol paper`."""


def recipe(name: str) -> Callable[[Callable[[], Recipe]], Callable[[], Recipe]]:
    def add(function: Callable[[], Recipe]) -> Callable[[], Recipe]:
        if not function.__doc__:
            raise TypeError(f"the recipe {name} has no docstring")
        _RECIPES[name] = function
        return function

    return add


def add_recipe(
    name: str, claim: str, value: Recipe, printed: Callable[[Recipe], Recipe] | None = None
) -> None:
    """Register a recipe that a table makes in a loop; printed: as its paper did it."""

    def function() -> Recipe:
        return value

    function.__doc__ = f"{claim}\n\n    torchcaps train {name} --record"
    recipe(name)(function)
    if printed is not None:
        _AS_PRINTED[name] = printed


def import_recipes(*groups: str) -> None:
    """Import the modules that register the recipes of these groups; none named: of all."""
    for group in groups or tuple(_HOMES):
        if group in _HOMES:
            import_module(_HOMES[group])


def recipes(*groups: str) -> dict[str, Callable[[], Recipe]]:
    """Recipes by name: of these papers, `demo` or `zoo`, or all."""
    import_recipes(*groups)
    names = (n for n in sorted(_RECIPES) if not groups or n.partition("/")[0] in groups)
    return {name: _RECIPES[name] for name in names}


def is_recipe(name: str) -> bool:
    """True if a recipe has this name; only the module of its group is imported."""
    import_recipes(name.partition("/")[0])
    return name in _RECIPES


def has_protocol(name: str, protocol: str) -> bool:
    return protocol == "ours" or (protocol == "paper" and is_recipe(name) and name in _AS_PRINTED)


def get_recipe(name: str, protocol: str = "ours") -> Recipe:
    if not is_recipe(name):
        near = nearest(name, list(recipes()), most=0)
        raise UsageError(f"Unknown recipe {name!r}. {near} See torchcaps paper list.")
    chosen = replace(_RECIPES[name](), name=name)
    if protocol == "ours":
        return chosen
    if not has_protocol(name, protocol):
        raise TorchcapsError(f"{name} has no protocol {protocol!r} of its own.")
    return replace(_AS_PRINTED[name](chosen), protocol="paper")


def pretraining_of(recipe: Recipe) -> Recipe | None:
    """The recipe that is trained before this one: by the same protocol where it knows that."""
    if not is_recipe(recipe.before):
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
    """Changes of a run to the recipe whose name it carries, as `field=value`."""
    if not is_recipe(recipe.name):
        return [f"name={recipe.name}"]
    known = has_protocol(recipe.name, recipe.protocol)
    fields = differences(recipe, get_recipe(recipe.name, recipe.protocol if known else "ours"))
    if recipe.protocol == "paper" and not known:
        fields.append("protocol=paper")
    if recipe.start_from and not _is_pretraining(recipe):
        fields.append(f"start_from={recipe.start_from}")
    return fields


def _is_pretraining(recipe: Recipe) -> bool:
    """True if the run that a recipe starts from is its pretraining."""
    first = pretraining_of(recipe)
    try:
        return first is not None and is_run_of(Run.open(recipe.start_from), first)
    except TorchcapsError:
        return False


def is_run_of(run: Run, recipe: Recipe) -> bool:
    """True if a run was started from this recipe, in any folder and with any seed."""
    return run.start().get("digest") == digest(recipe)


def marked(recipe: Recipe) -> Recipe:
    """A paper's recipe that was changed is no run of that paper's row: its protocol says so."""
    changed = recipe.paper and recipe.protocol in ("ours", "paper") and changes(recipe)
    return replace(recipe, protocol="modified") if changed else recipe


def identity(recipe: Recipe) -> dict[str, Any]:
    """Facts on the recipe for a run's record, as it was asked for."""
    changed = changes(recipe) if recipe.paper else []
    facts = {"digest": digest(recipe), "revision": revision(recipe)}
    return {**facts, **({"modified": changed} if changed else {})}
