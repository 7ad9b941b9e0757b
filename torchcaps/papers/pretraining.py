"""Pretraining: a recipe that starts from another one's weights trains that one first."""

from dataclasses import replace
from pathlib import Path

from torchcaps.errors import TorchcapsError
from torchcaps.escape import Console
from torchcaps.papers.records import append_record
from torchcaps.training.recipe import Recipe, with_root
from torchcaps.training.registry import is_run_of, pretraining_of
from torchcaps.training.run import Run, claimed, run_folder


def same_run(folder: Path, recipe: Recipe) -> bool:
    """True if a folder holds this recipe's run of its seed, on any hardware."""
    run = Run.open(folder)
    stored = run.recipe()
    source = str(source_of(recipe)) if recipe.before else ""
    alike = (stored.seed, stored.protocol) == (recipe.seed, recipe.protocol)
    return alike and stored.start_from in (source, recipe.start_from) and is_run_of(run, recipe)


def source_of(recipe: Recipe) -> Path:
    """The folder of a recipe's pretraining."""
    first = pretraining_of(recipe)
    return run_folder(recipe.before, first.protocol if first else "ours", recipe.seed)


def pretrained(
    recipe: Recipe, console: Console | None = None, results: Path | None = None
) -> Recipe:
    """The recipe with `start_from` filled in, after its pretraining.

    The pretraining has the recipe's seed, data folder, hardware and, if it knows that, protocol. A
    finished one in runs/ is used as it is, an interrupted one resumed; if another process trains
    it, this one waits. results: the folder that it is recorded in, by one process
    """
    from torchcaps.training.loop import resume, start  # Lightning takes a second to import

    first = pretraining_of(recipe)
    if not recipe.before or recipe.start_from:
        return recipe
    if first is None:
        raise TorchcapsError(f"{recipe.name} starts from {recipe.before!r}, which is not a recipe.")
    folder = source_of(recipe)
    first = replace(with_root(first, recipe.data.root), seed=recipe.seed, hardware=recipe.hardware)
    run = Run(folder)
    if not run.finished:
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
            f"{folder} is not a run of today's {recipe.name}. Move it away, or start from it with "
            f"--from {folder}."
        )
