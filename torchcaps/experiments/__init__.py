"""Recipes by name, and the papers' tables."""

from torchcaps.experiments import demo, generative, inverted, mcae, robustness, sparse, zoo
from torchcaps.experiments.tables import cells, get_table, list_tables
from torchcaps.train.registry import get_recipe, recipes

__all__ = [
    "cells",
    "demo",
    "generative",
    "get_recipe",
    "get_table",
    "inverted",
    "list_tables",
    "mcae",
    "recipes",
    "robustness",
    "sparse",
    "zoo",
]
