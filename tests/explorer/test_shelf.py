"""Models that can be explored: runs, saved folders, the hub, the zoo."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import torchcaps
from tests.conftest import TINY_CAPSNET
from torchcaps.cli.exploring import _readable
from torchcaps.data import Batch
from torchcaps.errors import TorchcapsError
from torchcaps.explorer.jobs import right_under
from torchcaps.explorer.shelf import Shelf
from torchcaps.models import CapsuleModel
from torchcaps.models.zoo import zoo_names
from torchcaps.train.loop import start


def test_a_saved_model_of_photographs_shows_digits_of_its_size_without_labels(tmp_path):
    model = torchcaps.create_model("convnet-avg-small", image_size=20, in_channels=3, num_classes=4)
    model.class_names = ("a", "b", "c", "d")
    model.save_pretrained(tmp_path / "photos")
    shelf = Shelf([tmp_path / "photos"], zoo=False)
    (book,) = shelf.books.values()
    test = shelf.data(book.id).test
    assert test.images.shape[1:] == (3, 20, 20) and test.images.float().std() > 10
    assert (test.labels == -1).all()
    found = shelf.about(book.id)
    assert found["classes"] == ["a", "b", "c", "d"] and book.provenance["results"] == []


def test_a_model_of_the_hub_comes_under_its_name_and_keeps_labels_that_are_its_own(monkeypatch):
    model = torchcaps.create_model("capsnet", **TINY_CAPSNET)
    model.class_names = tuple("0123456789")
    monkeypatch.setattr(CapsuleModel, "from_pretrained", lambda source: model)
    shelf = Shelf(["somebody/capsnet"])
    assert list(shelf.books)[0] == "capsnet" and len(shelf.books) == 1 + len(zoo_names())
    digits = torchcaps.data.load("digits").test
    assert torch.equal(shelf.data("capsnet").test.labels, digits.labels[:500])
    assert shelf.model("capsnet") is model


def test_what_comes_first_is_there_once():
    shelf = Shelf(["zoo:sparse"])
    assert list(shelf.books)[0] == "zoo:sparse" and len(shelf.books) == len(zoo_names())
    with pytest.raises(TorchcapsError, match="neither a run"):
        Shelf(["no/such/folder"])


def test_runs_that_split_their_data_otherwise_have_their_own_images(tiny_recipe, tmp_path):
    for seed in (0, 1):
        recipe = replace(tiny_recipe, epochs=1, data=replace(tiny_recipe.data, seed=seed))
        start(recipe, tmp_path / f"run{seed}")
    shelf = Shelf([tmp_path / "run0", tmp_path / "run1"], zoo=False)
    one, two = (shelf.data(key) for key in shelf.books)
    assert one is not two


def test_a_damaged_run_that_nobody_asked_for_is_left_out(tiny_recipe, tmp_path, capsys):
    good = start(replace(tiny_recipe, epochs=1), tmp_path / "good").folder
    bad = shutil.copytree(good, tmp_path / "bad")
    (bad / "record.json").write_text("{")
    assert [_readable(folder) for folder in (good, bad)] == [True, False]
    assert "left out" in capsys.readouterr().out


def test_images_without_labels_are_neither_right_nor_wrong():
    batch = Batch(torch.rand(4, 1, 28, 28), torch.tensor([-1, -1, 0, 0]))
    said = SimpleNamespace(encode=lambda x: x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchcaps.explorer.jobs.transformed", lambda images, *_: images)
        patch.setattr("torchcaps.explorer.jobs.logits_of", lambda x: torch.eye(10)[[0, 0, 0, 1]])
        assert right_under(said, batch, None, 0.0) == 0.5
