import math
from types import SimpleNamespace

import pytest
import torch

from torchcaps.data import Split
from torchcaps.metrics.equivariance import equivariance


class Centers(torch.nn.Module):
    """The first capsule knows where the ink is, the second the brightness of a corner."""

    def __init__(self, first):
        super().__init__()
        self.first = first

    def encode(self, images, coupling=False):
        x = (images.sum((1, 2)) * torch.arange(9.0)).sum(1) / images.sum((1, 2, 3))
        poses = torch.stack([torch.stack([x, x**0], 1), images[:, 0, 0, [0, 0]]], 1)
        return SimpleNamespace(capsules=poses, first=self.first)


@pytest.fixture
def spots(monkeypatch):
    """A bright spot in each image, at any place that it does not leave when it moves."""
    ranks = {0: torch.tensor([0, 1]), 1: torch.tensor([1, 0])}
    monkeypatch.setattr(
        "torchcaps.metrics.equivariance.support_and_rank",
        lambda output: (None, ranks[output.first].expand(len(output.capsules), 2)),
    )
    images = torch.zeros(60, 1, 9, 9, dtype=torch.uint8)
    n = torch.arange(60)
    images[n, 0, 1 + n % 7, 1 + n // 7 % 6] = 255
    images[:, 0, 0, :2] = torch.randint(200, (60, 2), dtype=torch.uint8)
    return Split(images, n % 2)


def test_a_pose_that_moves_with_the_image_is_explained(spots):
    plain = spots.images.clone()
    plain[:, 0, 0, :2] = 0
    clean = Split(plain, spots.labels)
    assert equivariance(Centers(0), clean, "shift_x", 1.0) == pytest.approx(1, abs=1e-3)


def test_a_pose_that_leaves_the_image_is_not(spots):
    assert equivariance(Centers(1), spots, "shift_x", -1.0) < 0.5


def test_too_few_images_of_a_capsule_tell_nothing(spots):
    assert math.isnan(equivariance(Centers(0), spots[slice(0, 7)], "shift_x", 1.0))
