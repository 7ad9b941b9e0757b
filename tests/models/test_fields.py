"""Configurations of unknown origin: every number has bounds, sizes and weights are checked."""

import dataclasses
import json
import math
import re
from typing import Any, get_type_hints

import pytest
import torch
from safetensors.torch import load_file, save_file

import torchcaps
from torchcaps.errors import TorchcapsError
from torchcaps.models import Model
from torchcaps.models.hub import download, is_hub_id, upload
from torchcaps.models.registry import FAMILIES, build, from_folder, models
from torchcaps.training.recipe import DataSpec, OptimizerSpec, Recipe, ScheduleSpec
from torchcaps.typed import bounds_of, check_bounds


def numbers(config: type) -> list[str]:
    """Fields that hold numbers."""
    kinds = {name: str(hint) for name, hint in get_type_hints(config).items()}
    named = (f.name for f in dataclasses.fields(config))
    return [n for n in named if re.search(r"\b(int|float)\b", kinds[n])]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_number_of_a_configuration_has_bounds(family):
    kind = FAMILIES[family][1]
    hints = get_type_hints(kind, include_extras=True)
    for name in numbers(kind):
        bounds = bounds_of(hints[name])
        assert bounds, f"{kind.__name__}.{name}"
        for number in (bounds.least - 1, bounds.most + 1, math.nan):
            value: Any = (number,) if isinstance(getattr(kind(), name), tuple) else number
            with pytest.raises(TorchcapsError, match=f"{name}=.*at least"):
                build(dataclasses.replace(kind(), **{name: value}))


def test_the_registered_models_are_within_the_bounds():
    for entry in models():
        check_bounds(entry.config)


def test_numbers_of_a_recipe_have_bounds():
    for kind in (Recipe, DataSpec, OptimizerSpec, ScheduleSpec):
        hints = get_type_hints(kind, include_extras=True)
        unbounded = {n for n in numbers(kind) if not bounds_of(hints[n])} - {"milestones"}
        assert not unbounded, kind


@pytest.fixture
def saved(tmp_path):
    torchcaps.create_model("capsnet-small.digits", pretrained=True).save_pretrained(tmp_path)
    return tmp_path


def change(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_configuration_cannot_ask_for_more_than_its_weights(saved):
    change(saved, channels=65_000, num_types=65_000)  # 30 TB
    with pytest.raises(
        TorchcapsError, match=r"has the shape .*, the configuration \[2340000, 10, 8, 16\]"
    ):
        from_folder(saved)


@pytest.mark.parametrize("names", [["a"], ["a"] * 11])
def test_the_names_of_classes_are_as_many_as_the_logits(saved, names):
    change(saved, classes=names)
    with pytest.raises(TorchcapsError, match=f"names {len(names)} classes, and the model has 10"):
        from_folder(saved)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_refused(saved, value):
    weights = load_file(saved / "model.safetensors")
    name = next(iter(weights))
    weights[name].view(-1)[3] = value
    save_file(weights, saved / "model.safetensors")
    with pytest.raises(TorchcapsError, match=f"{name} has values that are not finite"):
        torchcaps.load(saved)


def test_missing_and_unknown_weights_are_named(saved):
    weights = load_file(saved / "model.safetensors")
    name = next(iter(weights))
    save_file({**weights, "extra": torch.ones(2)}, saved / "model.safetensors")
    with pytest.raises(TorchcapsError, match="unknown weights 'extra'"):
        from_folder(saved)
    save_file({n: t for n, t in weights.items() if n != name}, saved / "model.safetensors")
    with pytest.raises(TorchcapsError, match=f"no weights '{name}'"):
        from_folder(saved)


@pytest.mark.parametrize(
    "name",
    ["~/x", "../x", "a b/c", "x/..", "org/m:evil", "a/b/c", "", "x" * 300 + "/y", "a\n/b", "\0/x"],
)
def test_a_name_that_is_no_hub_id_gives_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not is_hub_id(name)
    calls = (download, lambda n: upload(print, n), Model.from_pretrained)
    for call in (*calls, torchcaps.load) if name else calls[:2]:
        with pytest.raises(TorchcapsError) as error:
            call(name)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("capsnet-small", {"grid": 3, "reconstruction": "none"}),
        ("capsnet-small", {"transform": "types", "reconstruction": "none"}),
        ("capsnet-modern", {"grid": 3, "reconstruction": "none", "channels": 16}),
        ("inverted-small", {"grid": 7}),
        ("inverted-small", {"transform": "types", "dense": (5,)}),
        ("inverted-small", {"transform": "types", "routing": "self", "num_iters": 2}),
    ],
)
def test_weights_that_fit_images_of_every_size(name, fields):
    """The same weights for small and large images, also rectangular ones, and a gradient."""
    small, large = (
        torchcaps.create_model(name, **fields, image_size=size, image_width=width)
        for size, width in ((28, 0), (48, 40))
    )
    large.load_state_dict(small.state_dict())
    logits = large(torch.rand(2, 1, 48, 40)).logits
    assert logits.shape == (2, 10)
    logits.square().sum().backward()
    assert all(p.grad is not None for p in large.parameters())


def test_a_grid_that_is_larger_than_the_map():
    with pytest.raises(TorchcapsError, match="grid=7: the map has 6x6 positions"):
        torchcaps.create_model("capsnet-small", grid=7)
    with pytest.raises(TorchcapsError, match="too few for these windows"):
        torchcaps.create_model("inverted-small", grid=2)
