import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchcaps.errors import TorchcapsError
from torchcaps.training import recipe as recipe_module
from torchcaps.training.load import data_of
from torchcaps.training.recipe import DataSpec, Recipe, essence, from_dict, to_dict
from torchcaps.training.registry import changes, digest, get_recipe, marked, recipes, revision
from torchcaps.training.setup import set_up
from torchcaps.training.tasks import Classify, Masked


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
        optimizer=replace(base.optimizer, lr=lr),
        data=replace(base.data, augment=tuple(augment)),
    )
    assert from_dict(json.loads(json.dumps(to_dict(recipe)))) == recipe


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epocs": 3}, "Did you mean 'epochs'"),
        ({"epochs": "three"}, "epochs: 'three' is not of type int"),
        ({"seed": True}, "seed: True"),
        ({"optimizer": {"lrr": 1}}, "Did you mean 'lr'"),
        ({"task": {"kind": "classify", "loss": "hinge"}}, "hinge"),
        ({"task": {"kind": "clasify"}}, "Did you mean 'classify'"),
        ({"task": {"kind": "masked", "smoothing": 0.1}}, "no field 'smoothing'"),
        ({"task": {}}, "Unknown task None"),
        ({"version": 1}, "a recipe of version 1; this torchcaps reads version 3"),
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
    assert get_recipe("demo/capsnet").task.reconstruction == 0.002
    with pytest.raises(TypeError):
        Classify("margin", 0.002)


def test_the_digest_is_of_what_makes_the_experiment():
    base = get_recipe("robustness/table1/capsnet")
    alike = replace(
        base, seed=4, record=True, metrics=(), watch=("linear",), row="elsewhere",
        data=replace(base.data, root="elsewhere"), hardware=replace(base.hardware, devices=2),
        model=replace(base.model, image_size=40),
    )  # fmt: skip
    assert digest(alike) == digest(base) and not changes(alike)
    for other in (
        replace(base, epochs=1),
        replace(base, data=replace(base.data, seed=1)),
        replace(base, model=replace(base.model, num_iters=2)),
        replace(base, task=replace(base.task, reconstruction=0.0)),
        replace(base, task=Masked()),
    ):
        assert digest(other) != digest(base) and changes(other)
        assert marked(other).protocol == "modified"
    assert marked(alike) == alike


def test_a_finetuning_changes_with_its_pretraining(registered):
    first = replace(get_recipe("mcae/pretrain/mnist"), name="")
    second = replace(get_recipe("mcae/table1/mnist"), before="little/first")
    registered.recipe("little/first", first)
    registered.recipe("little/second", second)
    before = digest(get_recipe("little/second"))
    registered.recipe("little/first", replace(first, epochs=51))
    assert digest(get_recipe("little/second")) != before


def test_fields_at_their_defaults_are_not_in_the_digest():
    """So that a new field changes no digest as long as its default is what was done before."""
    found = essence(Recipe())
    assert found == {"family": "capsnet", "task_kind": "classify"}


def test_a_default_with_another_name_keeps_the_digest():
    base = get_recipe("mcae/pretrain/mnist")
    assert base.model.decoder == "auto"
    named, other = (
        replace(base, model=replace(base.model, decoder=kind)) for kind in ("capsules", "conv")
    )
    assert digest(named) == digest(base) != digest(other)
    assert essence(named) == essence(base)


def test_a_revision_rises_with_each_part(monkeypatch):
    recipe = get_recipe("robustness/table1/capsnet")
    before = revision(recipe)
    monkeypatch.setattr(type(recipe.model), "revision", 2)
    assert revision(recipe) == before + 1


def test_a_recipe_can_train_on_few_images_of_each_class():
    few = data_of(DataSpec(name="digits", held_out=100, per_class=7))
    assert (len(few.train), len(few.val), len(few.test)) == (70, 100, 500)


def test_each_seed_of_a_run_draws_its_own_few_labels(tiny_recipe):
    spec = replace(tiny_recipe.data, per_class=7)
    few = replace(tiny_recipe, data=spec, batch_size=10)
    seeded = [replace(few, seed=seed) for seed in (0, 0, 1)]
    drawn = [set_up(recipe)[1].data.train.images for recipe in seeded]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert torch.equal(drawn[2].cpu(), data_of(spec, label_seed=1).train.images)
