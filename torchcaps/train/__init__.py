"""Training: a recipe in, a run folder out."""

from pathlib import Path
from typing import TYPE_CHECKING

from torchcaps.train.recipe import Recipe

if TYPE_CHECKING:
    from torchcaps.train.run import Run


def train(recipe: Recipe, out: str | Path | None = None) -> "Run":
    """Run a recipe to its end: `torchcaps.train(torchcaps.Recipe(epochs=3)).record()`."""
    from torchcaps.train.loop import start  # Lightning takes a second to import

    return start(recipe, Path(out) if out else None)


__all__ = ["Recipe", "train"]
