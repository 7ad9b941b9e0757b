"""fruits-overlap: two fruits of a split on one image, one of them partly behind the other."""

import pytest
import torch
from PIL import Image, ImageDraw

import torchcaps
from torchcaps.data.sets.fruits_overlap import cut_out
from torchcaps.errors import UsageError

SHADE = 25
"""A fruit's shade of gray is its number times this."""


@pytest.fixture
def root(fruits_root):
    """Gray disks before white."""

    def disk(fruit):
        picture = Image.new("RGB", (32, 32), (255,) * 3)
        ImageDraw.Draw(picture).ellipse((1, 1, 30, 30), (SHADE * fruit,) * 3)
        return picture

    return fruits_root(disk)


def shown(image):
    """Shares of the pixels that have the shade of each fruit."""
    return [float(((image.float().mean(0) - SHADE * f).abs() < 9).float().mean()) for f in range(8)]


@pytest.mark.parametrize("test", ["half", "axis"])
def test_both_fruits_are_seen_and_the_first_covers_the_second(root, test):
    data = torchcaps.data.load(f"fruits-overlap:{test},size=48", root)
    assert [len(split) for split in (data.train, data.val, data.test)] == [16, 16, 16]
    assert data.image_shape == (3, 48, 48) and data.num_classes == 8
    for split in (data.train, data.val, data.test):
        assert split.labels[:, 0].bincount().tolist() == [2] * 8
        for image, (front, behind) in zip(split.images, split.labels.tolist(), strict=True):
            shares = shown(image)
            assert front != behind and 0.02 < shares[behind] < shares[front]
            others = [s for fruit, s in enumerate(shares) if fruit not in (front, behind)]
            assert max(others) < 0.02  # the blurred border of a disk has shades of others


def test_images_are_the_same_each_time_and_differ_by_seed(root):
    one, same, other = (
        torchcaps.data.load("fruits-overlap,size=48", root, seed=seed).train for seed in (0, 0, 1)
    )
    assert torch.equal(one.images, same.images) and not torch.equal(one.labels, other.labels)


def test_classes_may_be_left_out(root):
    data = torchcaps.data.load("fruits-overlap,size=48,classes=unseen", root)
    assert data.classes == ("fruit-3", "fruit-7") and len(data.test) == 4
    assert (data.test.labels.sum(1) == 1).all()


def test_without_overlap_the_fruits_are_apart_and_more_covers_more(root):
    covered = [
        torch.tensor([
            shown(image)[front] - shown(image)[behind]
            for image, (front, behind) in zip(split.images, split.labels.tolist(), strict=True)
        ]).mean() * (2 - overlap) ** 2
        for overlap in (0, 0.4, 0.8)
        for split in [torchcaps.data.load(f"fruits-overlap,size=48,overlap={overlap}", root).test]
    ]  # fmt: skip
    assert covered[0] < 0.05 < covered[1] < covered[2]
    with pytest.raises(UsageError, match="below 1"):
        torchcaps.data.load("fruits-overlap,overlap=1", root)


def test_a_highlight_inside_a_fruit_is_not_background():
    photograph = torch.full((3, 9, 9), 255, dtype=torch.uint8)
    photograph[:, 2:7, 2:7] = 90
    photograph[:, 4, 4] = 255
    wanted = torch.zeros(9, 9, dtype=torch.bool)
    wanted[2:7, 2:7] = True
    assert torch.equal(cut_out(photograph), wanted)
