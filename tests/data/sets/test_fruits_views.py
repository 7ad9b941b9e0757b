"""fruits-views: frames of fruits from two axes, laid out by the user."""

import math

import pytest
import torch
from PIL import Image

import torchcaps
from torchcaps.errors import TorchcapsError


@pytest.fixture
def root(fruits_root):
    """A gray square with a red top, a shade for each fruit."""

    def square(fruit):
        picture = Image.new("RGB", (32, 32), (20 * fruit,) * 3)
        picture.paste((255, 0, 0), (0, 0, 32, 8))
        return picture

    return fruits_root(square)


def test_frames_go_to_their_splits(root):
    data = torchcaps.data.load("fruits-views:axis,size=32", root)
    assert data.num_classes == 8 and data.image_shape == (3, 32, 32)
    frames = [set(split.factors["frame"].tolist()) for split in (data.train, data.val, data.test)]
    assert frames == [{0, 1}, {2, 3}, {6, 7}]
    assert data.test.labels.bincount().tolist() == [2] * 8
    turns = data.test.factors["turn"].unique() / (2 * math.pi)
    torch.testing.assert_close(turns, torch.tensor([6, 7]) / 328)


def test_every_fourth_fruit_is_unseen(root):
    seen = torchcaps.data.load("fruits-views,classes=seen", root)
    unseen = torchcaps.data.load("fruits-views,classes=unseen", root)
    assert unseen.classes == ("fruit-3", "fruit-7")
    assert set(seen.classes) & set(unseen.classes) == set() and seen.num_classes == 6
    assert len(seen.train) == 12 and len(unseen.test) == 4


def test_photographs_are_rotated_by_angles_of_their_own(root):
    plain = torchcaps.data.load("fruits-views,size=32", root)
    rotated = torchcaps.data.load("fruits-views,size=32,rotated=180", root)
    again = torchcaps.data.load("fruits-views,size=32,rotated=180", root)
    assert torch.equal(rotated.test.images, again.test.images)
    # the red side points elsewhere in two frames of one fruit, which are equal upright
    first, second = plain.test.images[:2].float()
    assert (first - second).abs().max() == 0
    first, second = rotated.test.images[:2].float()
    assert (first - second).abs().mean() > 10
    middle = rotated.test.images[:, :, 16, 16].float(), plain.test.images[:, :, 16, 16].float()
    torch.testing.assert_close(*middle, atol=8, rtol=0)  # of JPEG


@pytest.mark.parametrize("options", [":third", ",classes=most", ",size=32,rotated=-3"])
def test_other_options_are_refused(root, options):
    with pytest.raises(TorchcapsError):
        torchcaps.data.load("fruits-views" + options, root)


def test_a_missing_frame_is_named(root):
    (root / "fruits-views/axis1/fruit-5/1.jpg").unlink()
    with pytest.raises(TorchcapsError, match="1 of 48 files are missing.*fruit-5/1.jpg"):
        torchcaps.data.load("fruits-views", root)
