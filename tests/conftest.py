"""Shared fixtures: one thread (tiny work is faster so), the embedded digits, a tiny recipe."""

import os
from dataclasses import replace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

if not torch.cuda.is_available():  # must stand before anything imports Triton
    os.environ.setdefault("TRITON_INTERPRET", "1")

from hypothesis import settings

from torchcaps import data
from torchcaps.data import registry as data_registry
from torchcaps.experiments import tables
from torchcaps.models.registry import model_config
from torchcaps.train import registry as recipe_registry
from torchcaps.train.recipe import DataSpec, Recipe

torch.set_num_threads(1)
settings.register_profile("ci", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("ci")


@pytest.fixture(autouse=True)
def same_numbers_every_time():
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False


@pytest.fixture(scope="session")
def digits() -> data.Dataset:
    return data.load("digits")


TINY_CAPSNET = {"channels": 8, "num_types": 2, "in_dim": 4, "out_dim": 4, "hidden": (16,)}
TINY_CONVNET = {"channels": (4, 8), "strides": (1, 2), "kernel_size": 9, "hidden": ()}


@pytest.fixture
def tiny_recipe() -> Recipe:
    """Two epochs of twenty small steps with a very small CapsNet: about half a second."""
    return Recipe(
        name="tiny",
        epochs=2,
        batch_size=50,
        data=DataSpec("digits", ("translate:2",), per_class=100),
        model=model_config("capsnet", **TINY_CAPSNET),
    )


@pytest.fixture
def registered(monkeypatch):
    """Recipes, tables and data sets that are there for one test: the only place that knows how."""

    class Registered:
        def recipe(self, name, made, printed=None):
            monkeypatch.setitem(recipe_registry._RECIPES, name, None)
            monkeypatch.setitem(recipe_registry._AS_PRINTED, name, None)
            del recipe_registry._AS_PRINTED[name]
            recipe_registry.add_recipe(name, f"{name}.", made, printed)

        def table(self, table):
            monkeypatch.setitem(tables._TABLES, (table.paper, table.name), table)

        def data(self, name, load):
            entry = replace(data_registry.entry(name), load=load)
            monkeypatch.setitem(data_registry._ENTRIES, name, entry)

    return Registered()


@pytest.fixture
def few_digits(registered, digits):
    """The embedded digits, some of them, for whatever is drawn on them; fewer on demand."""

    def take(every: int) -> None:
        parts = {"train": digits.train[:: 2 * every], "val": digits.val[::every]}
        few = replace(digits, **parts, test=digits.test[::every])
        registered.data("digits", lambda root, *, seed: few)

    take(5)
    return take
