"""Errors of decoded features: the figure and the explorer's question show the same numbers."""

import numpy as np
import pytest
import torch

import torchcaps
from torchcaps.analysis.plots import get_plot
from torchcaps.analysis.routing_maps import example_image
from torchcaps.data import Dataset, Split
from torchcaps.explorer.questions import QUESTIONS, about


@pytest.fixture(scope="module")
def photos():
    images = (255 * torch.rand(24, 3, 32, 32)).byte()
    split = Split(images, torch.arange(24) % 7)
    return Dataset("photos", split, split, split, tuple("abcdefg"))


def _model(**fields):
    torch.manual_seed(0)
    return torchcaps.create_model(
        "capsule-head-uniform", image_size=32, num_classes=7, backbone="tiny", **fields
    ).eval()


def test_only_a_decoder_of_features_has_errors(tiny, photos):
    plot, question = get_plot("feature-errors"), QUESTIONS["errors"]
    assert "--model.reconstruction features" in plot.lacks(_model(), photos)
    assert question.lacks(_model()) == "It has no decoder of features"
    model = _model(reconstruction="features")
    assert plot.lacks(model, photos) == "" and "errors" in about(model)["questions"]


@torch.no_grad()
def test_the_figure_and_the_explorer_show_the_same_errors(tiny, photos):
    model, plot = _model(reconstruction="features"), get_plot("feature-errors")
    arrays = plot.compute(model, photos)
    image = example_image(photos)
    answer = QUESTIONS["errors"].answer(model, {"image": image})
    assert arrays["classes"].tolist() == ["abcdefg"[int(n)] for n in answer["classes"]]
    assert np.allclose(arrays["errors"], answer["errors"], atol=1e-5)
    output = model.encode(image[None])
    expected = model.feature_errors(output).mean(1)[0]
    assert np.allclose(arrays["errors"][0], expected, atol=1e-5)
    chart = plot.chart_of(arrays)
    assert chart.names[0] == f"{arrays['classes'][0]}: {float(expected.mean()):.2f}"
    assert len(chart.figure().axes) == 7  # two rows of three, and the color scale
