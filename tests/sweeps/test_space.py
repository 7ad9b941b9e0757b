"""Spaces of sweeps: what `--over` may say, and values of the recipe's types."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchcaps.errors import TorchcapsError, UsageError
from torchcaps.sweeps.space import (
    Range,
    as_json,
    from_json,
    grid,
    read_over,
    read_space,
    sample,
    with_values,
)
from torchcaps.training.recipe import Recipe


def space(*words):
    return read_space(Recipe(), read_over(words))


def test_values_have_the_types_of_the_fields():
    found = space(
        "optimizer.lr=log:1e-4..1e-1", "batch_size=32..64", "model.num-iters=1,2,3",
        "optimizer.kind=sgd,adam", "optimizer.nesterov=true,false", "schedule.gamma=0.1,1",
    )  # fmt: skip
    assert found["optimizer.lr"] == Range(1e-4, 1e-1, True)
    assert found["batch_size"] == Range(32, 64) and found["batch_size"].whole
    assert found["model.num_iters"] == (1, 2, 3)
    assert found["optimizer.kind"] == ("sgd", "adam")
    assert found["optimizer.nesterov"] == (True, False)
    assert [type(value) for value in found["schedule.gamma"]] == [float, float]
    assert from_json(json.loads(json.dumps(as_json(found)))) == found


@pytest.mark.parametrize("word, said", [
    ("optimizer.lrr=1,2", "Did you mean 'optimizer.lr'"),
    ("optimizer=1,2", "unknown field"),
    ("batch_size=1.5,2", "not of type int"),
    ("batch_size=1e2..2e2", "not of type int"),
    ("optimizer.kind=lion", "'lion' is not one of adam"),
    ("optimizer.lr=log:0..1", "both above 0"),
    ("optimizer.lr=2..1", "from a smaller to a larger"),
    ("optimizer.momentum=0.5,1", "it must be at least"),
    ("optimizer.lr=1e-3,0.001", "different values"),
    ("optimizer.kind=a..b", "is not one of"),
    ("paper=a,b", "cannot vary paper"),
    ("model.in_channels=1,3", "cannot vary model.in_channels"),
    ("optimizer.lr", "write FIELD=VALUES"),
])  # fmt: skip
def test_a_wrong_space_is_refused_before_anything_starts(word, said):
    with pytest.raises(TorchcapsError, match=said):
        space(word)


def test_a_field_twice_or_no_field_is_refused():
    for words in (("epochs=1,2", "epochs=3"), ()):
        with pytest.raises(UsageError):
            read_over(words)


def test_a_grid_has_every_combination():
    found = list(grid(space("epochs=1,2", "batch_size=8,16,32")))
    assert len(found) == 6 and found[0] == {"epochs": 1, "batch_size": 8}
    assert len({tuple(values.items()) for values in found}) == 6


def test_random_values_are_a_function_of_seed_and_number():
    found = space("optimizer.lr=log:1e-4..1e-1", "model.num_iters=1,2,3")
    assert sample(found, 1, 7) == sample(found, 1, 7)
    assert sample(found, 1, 7) != sample(found, 2, 7) != sample(found, 1, 8)


@given(st.integers(1, 1000), st.integers(1, 1000), st.booleans(), st.integers(0, 10**6))
def test_samples_stay_in_their_range(low, width, log, number):
    whole = {"epochs": Range(low, low + width, log)}
    value = sample(whole, 0, number)["epochs"]
    assert isinstance(value, int) and low <= value <= low + width
    real = {"optimizer.lr": Range(low / 1e4, (low + width) / 1e4, log)}
    value = sample(real, 0, number)["optimizer.lr"]
    assert low / 1e4 * (1 - 1e-5) <= value <= (low + width) / 1e4 * (1 + 1e-5)


def test_a_logarithmic_range_of_integers_reaches_its_ends():
    values = {Range(1, 4, True).at(share / 1000) for share in range(1000)}
    assert values == {1, 2, 3, 4}


def test_values_go_into_the_recipe():
    recipe = with_values(Recipe(), {"optimizer.lr": 0.5, "epochs": 3, "optimizer.kind": "sgd"})
    assert (recipe.optimizer.lr, recipe.epochs, recipe.optimizer.kind) == (0.5, 3, "sgd")
