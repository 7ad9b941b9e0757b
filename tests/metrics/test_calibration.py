import numpy as np
import pytest
import torch
from torch import nn

from torchcaps.analysis import get_plot
from torchcaps.data import Split
from torchcaps.metrics.calibration import calibration_error, reliability
from torchcaps.models import Output


class Claims(nn.Module):
    """Class 0 if the first pixel is dark, else 1; the second pixel is the confidence."""

    decoder = None

    def encode(self, images):
        confidence = images[:, 0, 0, 1]
        bright = images[:, 0, 0, 0] > 0.5
        lengths = torch.where(bright[:, None], torch.stack([1 - confidence, confidence], 1),
                              torch.stack([confidence, 1 - confidence], 1))  # fmt: skip
        return Output(lengths.log(), lengths)


def claims(right: list[bool], confidence: float) -> Split:
    images = torch.zeros(len(right), 1, 4, 4)
    images[:, :, 0, 1] = confidence
    return Split((images * 255).round().to(torch.uint8), (~torch.tensor(right)).long())


def test_calibration_error_is_confidence_minus_accuracy():
    split = claims([True, True, True, False], 0.8)
    assert calibration_error(Claims(), split) == pytest.approx(0.05, abs=1e-3)
    mean, accuracy, count = reliability(Claims(), split)
    where = int(np.nanargmax(count))
    assert count[where] == 4 and accuracy[where] == 0.75
    assert mean[where] == pytest.approx(0.8, abs=1e-3) and np.isnan(mean[0])
    assert (
        get_plot("reliability")
        .figure({"claims": {"confidence": mean, "accuracy": accuracy}})
        .axes[0]
        .get_lines()
    )


def test_bins_of_a_fifteenth():
    """0.65 right and 0.69 wrong are in two bins of 15, in one of 10: 0.35 / 2 + 0.69 / 2."""
    low, high = round(0.65 * 255) / 255, round(0.69 * 255) / 255
    one, two = claims([True], low), claims([False], high)
    split = Split(torch.cat([one.images, two.images]), torch.cat([one.labels, two.labels]))
    assert calibration_error(Claims(), split) == pytest.approx(((1 - low) + high) / 2, abs=1e-6)
    mean, accuracy, count = reliability(Claims(), split)
    assert len(count) == 15 and count.nonzero()[0].tolist() == [9, 10]
    assert mean[9:11].tolist() == pytest.approx([low, high])
    assert accuracy[9:11].tolist() == [1.0, 0.0]
