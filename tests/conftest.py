"""Shared fixtures: one thread (tiny work is faster so), the digits, a tiny recipe, a browser."""

import os
import shutil
from dataclasses import replace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

if not torch.cuda.is_available():  # must stand before anything imports Triton
    os.environ.setdefault("TRITON_INTERPRET", "1")

from hypothesis import settings
from torch import nn

from torchcaps import data
from torchcaps.data import registry as data_registry
from torchcaps.models.photos import features, register_backbone
from torchcaps.models.photos.backbone import BACKBONES
from torchcaps.models.registry import model_config
from torchcaps.papers import tables
from torchcaps.training import registry as recipe_registry
from torchcaps.training.recipe import DataSpec, Recipe

torch.set_num_threads(1)
settings.register_profile("ci", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("ci")


SLOW = (
    "tests/attack/", "tests/explorer/test_api_fuzz.py", "tests/explorer/test_page.py",
    "tests/explorer/test_web.py", "tests/kernels/test_cross_compile.py",
    "tests/kernels/test_ops.py", "tests/kernels/test_step.py::test_bfloat16",
    "tests/kernels/test_step.py::test_deterministic_on_request", "tests/models/test_export.py",
    "tests/test_api.py::test_a_routing_of_ones_own", "tests/test_api.py::test_the_quickstart",
    "tests/test_estimator.py::test_scikit_learn_checks", "tests/training/test_processes.py",
)  # fmt: skip
"""Slow tests: processes, browsers, compilers, hostile input."""


@pytest.fixture(autouse=True, scope="session")
def feature_cache(tmp_path_factory):
    """Features of frozen backbones are kept apart from the user's."""
    folder = tmp_path_factory.mktemp("features")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "cache_folder", lambda: folder)
        yield


@pytest.fixture
def tiny():
    """A registered backbone of photographs that is quick."""

    @register_backbone("tiny", channels=12)
    def make():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 8, 8, 8), nn.ReLU(), nn.Conv2d(8, 12, 1))

    yield "tiny"
    del BACKBONES["tiny"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def same_numbers_every_time():
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False


@pytest.fixture(scope="session")
def digits() -> data.Dataset:
    return data.load("digits")


TINY_CAPSNET = {"channels": 8, "num_types": 2, "pose_dim": 4, "class_pose_dim": 4, "hidden": (16,)}
TINY_CONVNET = {"channels": (4, 8), "strides": (1, 2), "kernel_size": 9, "hidden": ()}


@pytest.fixture
def tiny_recipe() -> Recipe:
    """Two epochs of twenty small steps with a very small CapsNet: about half a second."""
    return Recipe(
        name="tiny",
        epochs=2,
        batch_size=50,
        data=DataSpec(name="digits", augment=("translate:2",), per_class=100),
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
            monkeypatch.setitem(data_registry.DATASETS, name, entry)

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


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""


@pytest.fixture(scope="session")
def browser():
    if not CHROMIUM:
        if os.environ.get("CI"):
            pytest.fail("There is no Chromium here: apt install chromium.")
        pytest.skip("needs Chromium: apt install chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        yield started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
