"""Weights that come with torchcaps: small, each with the record of its run, as good as it says."""

import re
from dataclasses import replace

import pytest
import torch

import torchcaps
from torchcaps.errors import TorchcapsError, UsageError
from torchcaps.models.hub import WEIGHTS, pretrained_names
from torchcaps.models.registry import from_folder, model_config
from torchcaps.training.loop import start
from torchcaps.training.registry import recipes
from torchcaps.typed import read_object

MEGABYTES = 8


def test_they_are_few_megabytes():
    assert (
        pretrained_names() and sum(p.stat().st_size for p in WEIGHTS.rglob("*")) < MEGABYTES * 2**20
    )


@pytest.mark.parametrize("name", pretrained_names())
def test_each_is_as_good_as_its_record_says(name):
    record = read_object(WEIGHTS / name / "record.json")
    recipe = record["recipe"]["name"]
    assert recipe.startswith("zoo/") and recipe in recipes()
    assert name.startswith(recipe.removeprefix("zoo/")) and name.endswith(".digits")
    assert record["command"] == f"torchcaps train {recipe}"
    assert re.fullmatch("[0-9a-f]{40}(-dirty)?", record["commit"])
    assert record["device"] and record["date"]
    model = torchcaps.load(name)
    assert model.record == record
    said = {(r["data"], r["split"], r["metric"]): r["value"] for r in record["results"]}
    if "logits" not in model.provides:
        return
    batch = torchcaps.data.load("digits").test.batch(slice(None))
    with torch.no_grad():
        right = (model.encode(batch.images).logits.argmax(1) == batch.labels).float().mean()
    assert abs(float(right) - said["digits", "test", "accuracy"]) <= 0.004, "half precision"


def test_they_are_found_by_name():
    assert torchcaps.list_models("caps*", pretrained=True) == ["capsnet-small.digits"]
    model = torchcaps.create_model("capsnet-small", pretrained=True)
    loaded = torchcaps.load("capsnet-small.digits")
    pairs = zip(model.parameters(), loaded.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert model.class_names == tuple("0123456789")
    other = torchcaps.create_model("convnet-avg-small.digits", pretrained=True, num_classes=3)
    assert other.encode(torch.rand(2, 1, 28, 28)).logits.shape == (2, 3)
    with pytest.raises(UsageError, match="Did you mean 'capsnet-small.digits'"):
        torchcaps.create_model("capsnet-smal.digits", pretrained=True)
    with pytest.raises(TorchcapsError, match="list models --pretrained"):
        torchcaps.load("capsnet-smal.digits")
    with pytest.raises(UsageError, match="fit no other image_size"):
        torchcaps.create_model("capsnet-small.digits", pretrained=True, image_size=40)


def test_only_runs_of_the_zoo_are_kept(tmp_path, tiny_recipe, monkeypatch):
    from scripts import bundle_weights
    from scripts.bundle_weights import keep

    monkeypatch.setattr(bundle_weights, "WEIGHTS", tmp_path / "weights")
    with pytest.raises(TorchcapsError, match="not of a recipe zoo/NAME"):
        keep(start(tiny_recipe, tmp_path / "run").folder)
    small = replace(tiny_recipe, name="zoo/capsnet", epochs=1, model=model_config("capsnet-small"))
    run = start(small, tmp_path / "small")
    assert keep(run.folder) == tmp_path / "weights/capsnet-small.digits"
    kept = from_folder(tmp_path / "weights/capsnet-small.digits")
    assert read_object(tmp_path / "weights/capsnet-small.digits/record.json")["results"]
    for (name, one), other in zip(run.model.state_dict().items(), kept.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3, msg=name)
