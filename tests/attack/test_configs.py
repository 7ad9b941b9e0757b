"""Configurations of models that come from elsewhere: a model, or a sentence."""

import json
import os
import random

import pytest

import torchcaps
from torchcaps.data import Augment
from torchcaps.data.registry import entry
from torchcaps.errors import TorchcapsError
from torchcaps.metrics.base import read_metric
from torchcaps.models.registry import from_folder
from torchcaps.training.optim import learning_rate, make_optimizer
from torchcaps.training.recipe import load, sum_of, to_dict
from torchcaps.training.setup import build_task, check_recipe


@pytest.fixture
def saved(tmp_path):
    model = torchcaps.create_model("capsnet-small", channels=4, num_types=2, hidden=(8,))
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(
    "change",
    [
        {"family": []}, {"family": None}, {"family": "os.system"}, {"family": {"a": 1}},
        {"channels": -1}, {"channels": 10**400}, {"channels": 10**9}, {"channels": 0},
        {"hidden": [8] * 200_000}, {"hidden": [-1]}, {"hidden": "8"}, {"hidden": [[8]]},
        {"classes": 3}, {"classes": [1]}, {"image_size": 1}, {"image_size": 10**11},
        {"kernel_size": 0}, {"routing": "../../x"}, {"unknown": 1}, {"num_classes": -4},
        {"num_iters": 10**9}, {"num_iters": 0}, {"hidden": [60_000] * 900}, {"classes": ["a"] * 3},
        {"channels": 60_000, "kernel_size": 13, "num_types": 60_000},
    ],
    ids=str,
)  # fmt: skip
def test_fields(change, saved):
    path = saved / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(TorchcapsError) as said:
        from_folder(saved)
    assert len(str(said.value)) < 1000


@pytest.mark.parametrize("text", ["", "[]", "null", "7", "{", "[" * 100_000, '{"a":' * 50_000])
def test_texts(text, saved, tmp_path):
    (saved / "config.json").write_text(text)
    with pytest.raises(TorchcapsError, match="config.json"):
        from_folder(saved)
    (tmp_path / "recipe.json").write_text(text)
    with pytest.raises(TorchcapsError, match="recipe"):
        load(tmp_path / "recipe.json")


def test_a_network_of_timm_is_one_of_its_own(saved):
    """Other names would fetch, or read a file."""
    for network in ("hf-hub:somebody/something", "local-dir:/etc", "/etc/passwd"):
        (saved / "config.json").write_text(json.dumps({"family": "timm", "network": network}))
        with pytest.raises(TorchcapsError, match="timm"):
            from_folder(saved)


def test_a_model_at_home(saved, monkeypatch):
    monkeypatch.setenv("HOME", str(saved.parent))
    assert torchcaps.load("~/model").num_parameters
    with pytest.raises(TorchcapsError, match="not a run"):
        torchcaps.load("~/a/b")


def test_a_pipe_does_not_hang(saved):
    (saved / "config.json").unlink()
    os.mkfifo(saved / "config.json")
    with pytest.raises(TorchcapsError, match="not a plain file"):
        from_folder(saved)


def test_a_large_file_is_not_read(saved):
    with (saved / "config.json").open("r+b") as file:
        file.truncate(200 * 2**20)
    with pytest.raises(TorchcapsError, match="more than"):
        from_folder(saved)


VALUES = [None, True, -1, 0, 1, 10**13, 10**400, 1e300, float("nan"), float("inf"), -0.5, "", "x",
          "../..", "\0", [], {}, [1], ["a"], {"a": 1}, [[[]]], "é" * 5000]  # fmt: skip


def test_recipes_of_any_values(tiny_recipe, tmp_path):
    """Two thousand values in every place of a recipe file whose checksum is right: a recipe, or a
    sentence. With the checksum of other values none is read.
    """
    path = tmp_path / "recipe.json"
    plain = to_dict(tiny_recipe)
    places = [(k,) for k in plain if k != "version"]
    places += [(k, i) for k, v in plain.items() if isinstance(v, dict) for i in v]
    chance, refused = random.Random(0), 0
    for _ in range(2000):
        values = json.loads(json.dumps(plain))
        *group, name = chance.choice(places)
        (values[group[0]] if group else values)[name] = chance.choice(VALUES)
        path.write_text(json.dumps({**values, "sum": sum_of(values)}))
        try:
            _believed(load(path))
        except TorchcapsError as error:
            assert len(str(error)) < 20_000
            refused += 1
    assert 1000 < refused < 1990, "some are good, or nothing was tried"
    for epochs in (plain["epochs"], 7):
        path.write_text(json.dumps({**plain, "epochs": epochs, "sum": sum_of(plain)}))
        if epochs == plain["epochs"]:
            assert to_dict(load(path)) == plain
        else:
            with pytest.raises(TorchcapsError, match="changed since the run wrote it"):
                load(path)


def _believed(recipe):
    """All that a run makes of a recipe before it reads data."""
    check_recipe(recipe)
    make_optimizer(build_task(recipe), recipe.optimizer)
    for step in range(10):
        learning_rate(recipe.schedule, recipe.optimizer.lr, step, 10)
    Augment(recipe.data.augment)
    entry(recipe.data.name)
    for metric in (*recipe.metrics, *recipe.watch):
        read_metric(metric)
