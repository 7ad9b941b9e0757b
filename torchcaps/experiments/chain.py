"""A recipe that begins with another one's weights: that one is trained first, or gone on with."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from torchcaps.errors import TorchcapsError
from torchcaps.train.recipe import Recipe, with_root
from torchcaps.train.registry import is_run_of, pretraining_of
from torchcaps.train.results import append_record
from torchcaps.train.run import Run, claimed, folder_name


def same_run(folder: Path, recipe: Recipe) -> bool:
    """Whether a folder holds this recipe's run of its seed, on whatever it was trained."""
    run = Run.open(folder)
    held = run.recipe()
    source = str(source_of(recipe)) if recipe.before else ""
    alike = (held.seed, held.protocol) == (recipe.seed, recipe.protocol)
    return alike and held.start_from in (source, recipe.start_from) and is_run_of(run, recipe)


def source_of(recipe: Recipe) -> Path:
    """Where the pretraining of a recipe stands."""
    first = pretraining_of(recipe)
    protocol = first.protocol if first else "ours"
    return Path("runs") / folder_name(recipe.before, protocol, recipe.seed)


def pretrained(
    recipe: Recipe, console: Console | None = None, results: Path | None = None
) -> Recipe:
    """The recipe with `start_from` filled in; pretraining has its seed, data folder, hardware and,
    where it knows that, protocol. results: the folder that it is recorded in, by one process.

    A pretraining of that seed that stands in runs/ is used as it is, and gone on with if it was
    stopped; if another process is at it, this one waits.
    """
    from torchcaps.train.loop import resume, start  # Lightning takes a second to import

    first = pretraining_of(recipe)
    if not recipe.before or recipe.start_from:
        return recipe
    if first is None:
        raise TorchcapsError(f"{recipe.name} begins with {recipe.before!r}, which is no recipe.")
    folder = source_of(recipe)
    first = replace(with_root(first, recipe.data.root), seed=recipe.seed, hardware=recipe.hardware)
    run = Run(folder)
    if not run.record_file.exists():
        with claimed(folder, first, console.print if console else lambda _: None):
            if run.recipe_file.exists():
                _check(folder, first)
                resume(folder, console, in_turn=recipe.hardware.in_turn)
            else:
                start(first, folder, console)
    _check(folder, first)
    if results is not None and recipe.hardware.processes == 1:
        append_record(run.record(), results)
    return replace(recipe, start_from=str(folder))


def _check(folder: Path, recipe: Recipe) -> None:
    if not same_run(folder, recipe):
        raise TorchcapsError(
            f"{folder} is no run of {recipe.name} as it stands: move it away, or take it by "
            f"--from {folder}."
        )
