"""Models in the explorer: runs, saved folders, the hub, pretrained models."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import torchcaps
from tests.conftest import TINY_CAPSNET
from torchcaps.data import Batch
from torchcaps.errors import TorchcapsError
from torchcaps.explorer.jobs import accuracy_at
from torchcaps.explorer.serve import _readable
from torchcaps.explorer.shelf import Shelf
from torchcaps.models import Model
from torchcaps.models.hub import pretrained_names
from torchcaps.training.loop import start


def test_saved_models_show_scaled_digits_without_labels(tmp_path):
    model = torchcaps.create_model("convnet-avg-small", image_size=20, in_channels=3, num_classes=4)
    model.class_names = ("a", "b", "c", "d")
    model.save_pretrained(tmp_path / "photos")
    shelf = Shelf([tmp_path / "photos"], bundled=False)
    (book,) = shelf.books.values()
    test = shelf.data(book.id).test
    assert test.images.shape[1:] == (3, 20, 20) and test.images.float().std() > 10
    assert (test.labels == -1).all()
    found = shelf.about(book.id)
    assert found["classes"] == ["a", "b", "c", "d"] and book.provenance["results"] == []


def test_a_blank_decoder_is_a_fact_of_its_model(tiny_recipe, tmp_path):
    run = start(replace(tiny_recipe, epochs=1), tmp_path / "run").folder
    shelf = Shelf([run, "capsnet-small.digits", "convnet-avg-small.digits"], bundled=False)
    blank, learned, none = (shelf.about(key).get("blank") for key in shelf.books)
    assert blank and blank.startswith("The decoder learned nothing: ")
    assert learned == "" and none is None


def test_hub_models_keep_their_name_and_matching_labels(monkeypatch):
    model = torchcaps.create_model("capsnet", **TINY_CAPSNET)
    model.class_names = tuple("0123456789")
    monkeypatch.setattr(Model, "from_pretrained", lambda source: model)
    shelf = Shelf(["somebody/capsnet"])
    assert list(shelf.books)[0] == "capsnet" and len(shelf.books) == 1 + len(pretrained_names())
    digits = torchcaps.data.load("digits").test
    assert torch.equal(shelf.data("capsnet").test.labels, digits.labels[:500])
    assert shelf.model("capsnet") is model


def test_no_model_is_listed_twice():
    shelf = Shelf(["sparse-small.digits"])
    assert list(shelf.books)[0] == "sparse-small.digits" and len(shelf.books) == len(
        pretrained_names()
    )
    with pytest.raises(TorchcapsError, match="not a run"):
        Shelf(["no/such/folder"])


def test_runs_with_another_split_have_separate_data(tiny_recipe, tmp_path):
    for seed in (0, 1):
        recipe = replace(tiny_recipe, epochs=1, data=replace(tiny_recipe.data, seed=seed))
        start(recipe, tmp_path / f"run{seed}")
    shelf = Shelf([tmp_path / "run0", tmp_path / "run1"], bundled=False)
    one, two = (shelf.data(key) for key in shelf.books)
    assert one is not two


def test_damaged_runs_are_skipped(tiny_recipe, tmp_path, capsys):
    good = start(replace(tiny_recipe, epochs=1), tmp_path / "good").folder
    bad = shutil.copytree(good, tmp_path / "bad")
    (bad / "record.json").write_text("{")
    assert [_readable(folder, Console()) for folder in (good, bad)] == [True, False]
    assert "skipping: " in capsys.readouterr().out


def test_unlabeled_images_do_not_count():
    batch = Batch(torch.rand(4, 1, 28, 28), torch.tensor([-1, -1, 0, 0]))
    model = SimpleNamespace(encode=lambda x: x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchcaps.explorer.jobs.transformed", lambda images, *_: images)
        patch.setattr("torchcaps.explorer.jobs.logits_of", lambda x: torch.eye(10)[[0, 0, 0, 1]])
        assert accuracy_at(model, batch, None, 0.0) == 0.5
