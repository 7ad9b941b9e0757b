"""A recipe that begins with another one's weights: that one is trained first, or gone on with."""

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from torchcaps.experiments.registry import get_recipe
from torchcaps.train.loop import resume, start
from torchcaps.train.recipe import Recipe


def pretrained(recipe: Recipe, console: Console | None = None) -> Recipe:
    """The recipe with `start_from` filled in; pretraining has its seed, data folder and hardware.

    A pretraining of that seed that stands in runs/ is used as it is, and gone on with if it was
    stopped.
    """
    if not recipe.before or recipe.start_from:
        return recipe
    folder = Path("runs") / f"{recipe.before.replace('/', '-')}-s{recipe.seed}"
    if (folder / "recipe.json").exists():
        run = resume(folder, console)
    else:
        first = get_recipe(recipe.before)
        data = replace(first.data, root=recipe.data.root)
        first = replace(first, seed=recipe.seed, data=data, hardware=recipe.hardware)
        run = start(first, folder, console)
    return replace(recipe, start_from=str(run.folder))
