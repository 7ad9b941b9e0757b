"""Accuracy from three views of an object."""

from dataclasses import replace

import pytest
import torch

from torchcaps.data import Split
from torchcaps.errors import TorchcapsError
from torchcaps.metrics.views import Views, consecutive
from torchcaps.models.base import Output


class Pixels(torch.nn.Module):
    """Class probabilities are an image's two pixels."""

    def encode(self, images):
        return Output(images.flatten(1).log())


def frames_of(*shares, labels, frames):
    """Frames whose first class has these shares."""
    first = torch.tensor(shares)
    images = (torch.stack([first, 1 - first], 1) * 255).round().byte()[:, None, None]
    return Split(images, torch.tensor(labels), {"frame": torch.tensor(frames)})


def test_windows_are_frames_of_one_class_in_order():
    windows = consecutive(
        torch.tensor([9, 0, 5, 2, 1, 3]), torch.tensor([0, 0, 0, 0, 1, 1]), count=3
    )
    assert windows.tolist() == [[1, 3, 2], [3, 2, 0]]


def test_sure_frames_outvote_a_wrong_one_and_order_is_by_frame(digits):
    """Frames 0, 1 and 2 have mean 0.6; frames 1, 2 and 3 have mean 0.4, which is wrong."""
    split = frames_of(0.1, 0.3, 0.9, 0.6, labels=[0] * 4, frames=[3, 2, 0, 1])
    numbers = Views().score(Pixels(), digits, split)
    assert numbers == {"views3_accuracy": 0.5}


def test_data_without_three_frames_of_a_class_is_refused(digits):
    few = frames_of(0.1, 0.2, 0.3, labels=[0, 0, 1], frames=[0, 1, 2])
    with pytest.raises(TorchcapsError, match="3 frames"):
        Views().score(Pixels(), digits, few)
    with pytest.raises(TorchcapsError, match="frame numbers"):
        Views().check(Pixels(), digits)
    Views().check(Pixels(), replace(digits, test=few))
