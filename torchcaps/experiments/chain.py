"""A recipe that begins with another one's weights: that one is trained first, or gone on with."""

from dataclasses import fields, replace
from pathlib import Path

from rich.console import Console

from torchcaps.errors import TorchcapsError
from torchcaps.experiments.registry import get_recipe, has_protocol
from torchcaps.train.loop import resume, start
from torchcaps.train.recipe import Recipe
from torchcaps.train.record import append_results
from torchcaps.train.run import Run, claimed, folder_name

_FILLED = {"in_channels", "image_size", "num_classes"}
"""Fields of a model that the loop takes from the data."""


def same_run(folder: Path, recipe: Recipe) -> bool:
    """Whether a folder holds this recipe's run, wherever and on whatever it was trained."""
    held = Run.open(folder).recipe()
    names = {f.name for f in fields(recipe.model)} - _FILLED
    alike = type(held.model) is type(recipe.model) and all(
        getattr(held.model, n) == getattr(recipe.model, n) for n in names
    )
    there = {
        "data": replace(held.data, root=recipe.data.root),
        "model": recipe.model,
        "hardware": recipe.hardware,
        "record": recipe.record,
        **{name: getattr(recipe, name) for name in ("paper", "table", "row")},
        "start_from": recipe.start_from,
    }
    begun = held.start_from in (str(source_of(recipe)) if recipe.before else "", recipe.start_from)
    return alike and begun and replace(held, **there) == recipe


def _protocol(recipe: Recipe) -> str:
    """Of its pretraining: the recipe's own where that knows it."""
    return recipe.protocol if has_protocol(recipe.before, recipe.protocol) else "ours"


def source_of(recipe: Recipe) -> Path:
    """Where the pretraining of a recipe stands."""
    return Path("runs") / folder_name(recipe.before, _protocol(recipe), recipe.seed)


def pretrained(
    recipe: Recipe, console: Console | None = None, results: Path | None = None
) -> Recipe:
    """The recipe with `start_from` filled in; pretraining has its seed, data folder, hardware and,
    where it knows that, protocol. results: the folder that it is recorded in, by one process.

    A pretraining of that seed that stands in runs/ is used as it is, and gone on with if it was
    stopped; if another process is at it, this one waits.
    """
    if not recipe.before or recipe.start_from:
        return recipe
    first, folder = get_recipe(recipe.before, _protocol(recipe)), source_of(recipe)
    data = replace(first.data, root=recipe.data.root)
    first = replace(first, seed=recipe.seed, data=data, hardware=recipe.hardware)
    run = Run(folder)
    if not run.record_file.exists():
        with claimed(folder, first, console.print if console else lambda _: None):
            if run.recipe_file.exists():
                _check(folder, first)
                resume(folder, console)
            else:
                start(first, folder, console)
    _check(folder, first)
    if results is not None and recipe.hardware.processes == 1:
        append_results(run.record(), results)
    return replace(recipe, start_from=str(folder))


def _check(folder: Path, recipe: Recipe) -> None:
    if not same_run(folder, recipe):
        raise TorchcapsError(
            f"{folder} is no run of {recipe.name} as it stands: move it away, or take it by "
            f"--from {folder}."
        )
