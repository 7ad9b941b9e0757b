"""Weights that come with torchcaps: small, each with the record of its run, as good as it says."""

import re

import pytest
import torch

import torchcaps
from torchcaps.errors import Misused
from torchcaps.experiments import recipes
from torchcaps.models.zoo import FOLDER, zoo_names
from torchcaps.typed import read_object

MEGABYTES = 8


def test_they_are_few_megabytes():
    assert zoo_names() and sum(p.stat().st_size for p in FOLDER.rglob("*")) < MEGABYTES * 2**20


@pytest.mark.parametrize("name", zoo_names())
def test_each_is_as_good_as_its_record_says(name):
    record = read_object(FOLDER / name / "record.json")
    assert record["recipe"]["name"] == f"zoo/{name}" and f"zoo/{name}" in recipes()
    assert record["command"] == f"torchcaps train zoo/{name}"
    assert re.fullmatch("[0-9a-f]{40}(-dirty)?", record["commit"])
    assert record["device"] and record["date"]
    model = torchcaps.load(f"zoo:{name}")
    assert model.record == record
    said = {(r["data"], r["split"], r["metric"]): r["value"] for r in record["results"]}
    if "logits" not in model.provides:
        return
    batch = torchcaps.data.load("digits").test.batch(slice(None))
    with torch.no_grad():
        right = (model.encode(batch.images).logits.argmax(1) == batch.labels).float().mean()
    assert abs(float(right) - said["digits", "test", "accuracy"]) <= 0.004, "half precision"


def test_they_are_found_by_name():
    assert torchcaps.list_models("caps*", pretrained=True) == ["capsnet"]
    model = torchcaps.create_model("capsnet", pretrained=True)
    loaded = torchcaps.load("zoo:capsnet")
    pairs = zip(model.parameters(), loaded.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert model.class_names == tuple("0123456789")
    other = torchcaps.create_model("convnet-avg", pretrained=True, num_classes=3)
    assert other.encode(torch.rand(2, 1, 28, 28)).logits.shape == (2, 3)
    with pytest.raises(Misused, match="capsnet"):
        torchcaps.load("zoo:capsnets")
    with pytest.raises(Misused, match="fit no other image_size"):
        torchcaps.create_model("capsnet", pretrained=True, image_size=40)


def test_only_runs_of_the_zoo_are_kept(tmp_path, tiny_recipe):
    from torchcaps.cli.keep import keep
    from torchcaps.errors import TorchcapsError
    from torchcaps.train.loop import start

    with pytest.raises(TorchcapsError, match="not of a recipe zoo/NAME"):
        keep(start(tiny_recipe, tmp_path / "run").folder)
