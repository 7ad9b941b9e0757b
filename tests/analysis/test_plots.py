"""Plots by name: reasons for missing plots, arrays, charts."""

import numpy as np
import pytest
import torch

import torchcaps
from tests.conftest import TINY_CAPSNET
from tests.models.test_registry import small
from torchcaps.analysis import report_plots
from torchcaps.analysis.confusion import by_class, worst_mistakes
from torchcaps.analysis.plots import get_plot
from torchcaps.analysis.traversal import explained
from torchcaps.data import Split
from torchcaps.errors import TorchcapsError
from torchcaps.models import Output

MODELS = ["capsnet", "convnet-cr", "convnet-avg", "em-capsnet", "inverted-simple", "mcae",
          "mcae-pretrain", "sr-capsnet", "view-capsnet", "sparse", "autoencoder",
          "generative", "vae", "capsule-head", "vote-head"]  # fmt: skip


@pytest.fixture(scope="module")
def few():
    images = (255 * torch.rand(40, 1, 24, 24)).byte()
    split = Split(images, torch.arange(40) % 7)
    return torchcaps.data.Dataset("few", split, split, split, tuple("abcdefg"))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("view", report_plots(), ids=lambda v: v.name)
def test_every_plot_of_every_family_is_drawn_or_gives_a_reason(name, view, few):
    model = small(name).eval()
    reason = view.lacks(model, few)
    if reason:
        assert reason.endswith(".") and reason[0].isupper()
        return
    arrays = view.compute(model, few)
    assert arrays and all(isinstance(a, np.ndarray) for a in arrays.values())
    assert view.figure({name: arrays}).axes
    assert view.title and view.description.endswith(".")


def test_plots_of_each_family(few):
    applies = {
        name: {v.name for v in report_plots() if not v.lacks(small(name).eval(), few)}
        for name in MODELS
    }
    classes = {"classes", "confusion", "mistakes", "rotation", "reliability"}
    drawn, ranked = {"reconstructions", "alone", "units"}, {"support", "ranks"}
    assert applies["capsnet"] == {*classes, *drawn, *ranked, "where", "nearest"}
    assert applies["mcae-pretrain"] == {"masked"}
    assert applies["sparse"] == {*drawn, *ranked} and applies["autoencoder"] == drawn
    made_of_parts = {"parts", "templates", "turned", "free-form"}
    assert applies["generative"] == {"reconstructions", *made_of_parts, *ranked}
    assert applies["vae"] == drawn
    assert applies["convnet-avg"] == classes
    assert applies["vote-head"] == {*classes, "votes"}
    assert applies["capsule-head"] == {*classes, *ranked, "where", "votes", "nearest"}
    with pytest.raises(TorchcapsError, match="Did you mean 'where'"):
        get_plot("wher")


class Says(torch.nn.Module):
    """Predict the class in the first pixel with the confidence in the second."""

    provides = frozenset({"logits"})
    temperature = None

    def encode(self, images):
        classes = (images[:, 0, 0, 0] * 255).round().long()
        scores = torch.zeros(len(images), 3)
        scores[torch.arange(len(images)), classes] = images[:, 0, 0, 1]
        return Output(scores, scores)


def test_mistakes_are_sorted_by_confidence():
    images = torch.zeros(5, 1, 2, 2, dtype=torch.uint8)
    images[:, 0, 0, 0] = torch.tensor([0, 1, 2, 1, 0])
    images[:, 0, 0, 1] = torch.tensor([200, 100, 250, 150, 90])
    split = Split(images, torch.tensor([0, 0, 1, 2, -1]))
    found = worst_mistakes(Says(), split, 8)
    assert found["labels"].tolist() == [1, 2, 0] and found["predicted"].tolist() == [2, 1, 1]
    assert np.array_equal(found["images"][0] * 255, images[2].numpy())
    accuracy, count = by_class(Says(), split)
    assert accuracy.tolist()[:2] == [0.5, 0.0] and count.tolist() == [2, 1, 1]


def test_mistakes_of_a_perfect_model(digits):
    view = get_plot("mistakes")
    nothing = {"images": np.zeros((0, 1, 2, 2)), "classes": np.array(["a"])}
    assert view.figure({"x": {**nothing, "labels": np.zeros(0), "predicted": np.zeros(0)}}).texts
    model = torchcaps.create_model("capsnet", **TINY_CAPSNET)
    assert view.figure({"x": view.compute(model, digits)}).axes


def test_a_decoder_that_learned_nothing_is_named(digits):
    """An untrained decoder; one that copies the images' mean color; a trained one."""
    plot = get_plot("reconstructions")
    torch.manual_seed(0)
    assert "explain 0 %" in plot.blank(torchcaps.create_model("capsnet-small"), digits)
    assert plot.blank(torchcaps.load("capsnet-small.digits"), digits) == ""
    assert plot.blank(torchcaps.load("convnet-avg-small.digits"), digits) == ""


def test_explained_variance_of_reconstructions(monkeypatch):
    """Two images, one 0 and 1, one all 1; decoded as their means and as the mean of both."""
    images = torch.tensor([[0.0, 1.0], [1.0, 1.0]]).view(2, 1, 1, 2)
    for decoded, share in (
        (images, 1.0),
        (images.mean(0, keepdim=True).expand(2, -1, -1, -1), 0.0),
        (images.flip(0), 1 - 2 / 0.5),
    ):
        values = decoded.numpy()
        monkeypatch.setattr("torchcaps.analysis.traversal.reconstructions", lambda *_, v=values: v)
        # errors of the flat images 0.5 and 1: twice 0.25; of the mean image 0.5 and 1: the same
        assert explained(None, images) == pytest.approx((share, 0.0))
