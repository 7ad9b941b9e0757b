"""Recipes by name, and the papers' tables."""

from torchcaps.experiments import demo, inverted, mcae, robustness
from torchcaps.experiments.registry import get_recipe, recipes
from torchcaps.experiments.tables import cells, get_table, tables

__all__ = [
    "cells",
    "demo",
    "get_recipe",
    "get_table",
    "inverted",
    "mcae",
    "recipes",
    "robustness",
    "tables",
]
