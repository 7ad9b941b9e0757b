"""Training: a recipe in, a run folder out. `torchcaps.fit(recipe)` is the way in."""

from torchcaps.train.recipe import Recipe

__all__ = ["Recipe"]
