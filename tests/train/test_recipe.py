import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchcaps.errors import TorchcapsError
from torchcaps.experiments import get_recipe, recipes
from torchcaps.train import recipe as recipe_module
from torchcaps.train.load import data_of
from torchcaps.train.recipe import DataSpec, LossSpec, Recipe, from_dict, to_dict


@pytest.mark.parametrize("name", list(recipes()))
def test_a_recipe_survives_json(name):
    recipe = get_recipe(name)
    assert from_dict(json.loads(json.dumps(to_dict(recipe)))) == recipe


@given(st.integers(0, 10**9), st.floats(1e-9, 10), st.lists(st.sampled_from(["flip", "crop:4"])))
def test_any_values_survive_json(seed, lr, augment):
    base = Recipe()
    recipe = replace(
        base,
        seed=seed,
        optimiser=replace(base.optimiser, lr=lr),
        data=replace(base.data, augment=tuple(augment)),
    )
    assert from_dict(json.loads(json.dumps(to_dict(recipe)))) == recipe


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epocs": 3}, "Did you mean 'epochs'"),
        ({"epochs": "three"}, "epochs: 'three' is not of type int"),
        ({"seed": True}, "seed: True"),
        ({"optimiser": {"lrr": 1}}, "Did you mean 'lr'"),
        ({"loss": {"kind": "hinge"}}, "hinge"),
        ({"model": {"family": "capsnt"}}, "Did you mean 'capsnet'"),
        ({"model": {"family": "capsnet", "num_iters": "x"}}, "num_iters"),
        ({"data": 3}, "not a group"),
        ({"version": 99}, "version 99"),
    ],
)
def test_a_wrong_recipe_is_explained(change, words):
    with pytest.raises(TorchcapsError, match=words):
        from_dict({"version": recipe_module.VERSION, **change})


def test_a_file_that_is_no_recipe(tmp_path):
    path = tmp_path / "recipe.json"
    for text in ("", "[1]", "{"):
        path.write_text(text)
        with pytest.raises(TorchcapsError):
            recipe_module.load(path)


def test_weights_of_losses_are_named():
    assert get_recipe("demo/capsnet").loss.reconstruction == 0.002
    with pytest.raises(TypeError):
        LossSpec("margin", 0.002)


def test_a_recipe_can_train_on_few_images_of_each_class():
    few = data_of(DataSpec("digits", held_out=100, per_class=7))
    assert (len(few.train), len(few.val), len(few.test)) == (70, 100, 500)
