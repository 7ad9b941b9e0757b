"""Nearest training images: by the pose of the predicted class, for any model that has one."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import torchcaps
from tests.conftest import TINY_CAPSNET
from torchcaps.analysis import nearest
from torchcaps.analysis.nearest import TrainingPoses, thumbnails
from torchcaps.analysis.plots import get_plot
from torchcaps.data import Dataset, Split

CLASSES = 101


def _split(images, labels):
    return Split((255 * images).byte(), labels)


def _dataset(side, count=30, classes=CLASSES, channels=3):
    torch.manual_seed(0)
    train = _split(torch.rand(count, channels, side, side), torch.arange(count) % classes)
    test = train[torch.tensor([4, 17, 29])]
    return Dataset("photos", train, test, test, tuple(map(str, range(classes))))


def _head(routing, **fields):
    torch.manual_seed(0)
    return torchcaps.create_model(
        "capsule-head", routing=routing, image_size=32, num_classes=CLASSES, num_types=2,
        backbone="tiny", **fields,
    ).eval()  # fmt: skip


@pytest.mark.parametrize("routing", ["self", "uniform"])
def test_a_training_image_is_its_own_nearest(tiny, routing, monkeypatch):
    monkeypatch.setattr(nearest, "BATCH", 7)  # several batches
    data, model = _dataset(32), _head(routing)
    poses = TrainingPoses(model, data)
    images = data.test.batch(slice(None)).images
    answer = poses.nearest(images, 4)
    assert answer.rows[:, 0].tolist() == [4, 17, 29]
    assert torch.allclose(answer.similarity[:, 0], torch.ones(3), atol=1e-5)
    assert (answer.similarity.diff(dim=1) <= 0).all() and answer.similarity[:, 1].max() < 1
    assert set(poses.by_class) == set(answer.predicted.tolist())
    again = poses.nearest(images[1:2], 4)  # the same as alone, from poses that are kept
    assert torch.equal(again.rows[0], answer.rows[1])


@torch.no_grad()
def test_similarity_is_the_cosine_of_the_poses_of_the_predicted_class():
    data = _dataset(24, classes=7, channels=1)
    model = torchcaps.create_model("capsnet", **TINY_CAPSNET | {"image_size": 24, "num_classes": 7})
    images = data.test.batch(slice(None)).images
    answer = TrainingPoses(model.eval(), data).nearest(images, 3)
    own = model.encode(images)
    others = model.encode(data.train.batch(slice(None)).images).capsules
    for n, label in enumerate(own.logits.argmax(1).tolist()):
        cosines = F.cosine_similarity(others[:, label], own.capsules[n, label], dim=1)
        assert torch.allclose(answer.similarity[n], cosines.topk(3).values, atol=1e-5)


@torch.no_grad()
def test_vectors_of_self_routing_are_the_poses_that_a_class_receives(tiny):
    model, images = _head("self"), torch.rand(2, 3, 32, 32)
    output = model.encode(images, coupling=True)
    poses, active = output.layers[0].poses, output.layers[0].activations
    vectors = model.class_vectors(images, torch.tensor([5, 100]))
    shares = output.coupling[..., 100].view(2, 3, 3, 2) * active
    expected = (shares[..., None] * poses).sum((1, 2)).flatten(1)
    assert torch.allclose(vectors[:, 1], expected, atol=1e-5)


def test_of_many_training_images_some_are_compared(tiny, monkeypatch):
    monkeypatch.setattr(nearest, "MAX_IMAGES", 5)
    data = _dataset(32)
    poses = TrainingPoses(_head("uniform"), data)
    assert poses.split.labels.tolist() == [0, 7, 14, 21, 29]
    assert len(poses.nearest(data.test.batch(slice(None)).images, 9).rows[0]) == 5


def test_the_figure_has_a_row_for_each_test_image(tiny):
    data, plot = _dataset(32), get_plot("nearest", images=2, neighbors=3)
    model = _head("uniform")
    assert plot.lacks(model, data) == ""
    arrays = plot.compute(model, data)
    chart = plot.chart_of(arrays)
    assert chart.columns == 4 and len(chart.images) == len(chart.captions) == 8
    assert arrays["predicted"][1] != "29"
    assert chart.captions[4] == f"predicted: {arrays['predicted'][1]}\ntrue: 29"
    assert chart.captions[1] == "4\n1.000" and np.array_equal(chart.images[0], chart.images[1])
    arrays["true"] = arrays["predicted"]
    assert plot.chart_of(arrays).captions[4] == f"predicted: {arrays['predicted'][1]}"
    assert len(chart.figure().axes) == 8 and chart.data()["columns"] == 4


def test_reasons_without_poses_or_images():
    plot, data = get_plot("nearest"), _dataset(24, classes=7, channels=1)
    sizes = {"image_size": 24, "num_classes": 7}
    convnet = torchcaps.create_model("convnet-avg-small", **sizes)
    assert plot.lacks(convnet, data) == "It has no class capsules with poses."
    capsnet = torchcaps.create_model("capsnet", **TINY_CAPSNET | sizes | {"image_size": 28})
    assert plot.lacks(capsnet, data) == "Its training images are generated."


def test_thumbnails_keep_the_shape_of_an_image():
    assert thumbnails(torch.rand(2, 3, 224, 112)).shape == (2, 3, 96, 48)
    small = torch.rand(2, 1, 28, 28)
    assert thumbnails(small) is small
