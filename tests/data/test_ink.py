"""Boxes around ink against a loop, and sets that lie alike or do not."""

import pytest
import torch

import torchcaps
from torchcaps.cli import main
from torchcaps.data import Split
from torchcaps.data.ink import compare_ink, distance, ink_boxes
from torchcaps.errors import TorchcapsError


def test_boxes_against_a_loop():
    images = torch.randint(0, 256, (5, 1, 7, 11), dtype=torch.uint8) * (
        torch.rand(5, 1, 7, 11) < 0.1
    )
    images[:, :, 3, 4] = 255
    boxes = ink_boxes(Split(images, torch.zeros(5)))
    for n, image in enumerate(images[:, 0]):
        places = [(y, x) for y in range(7) for x in range(11) if image[y, x] >= 32]
        rows, columns = [y for y, _ in places], [x for _, x in places]
        assert boxes["top"][n] == min(rows) and boxes["left"][n] == min(columns)
        assert boxes["height"][n] == max(rows) - min(rows) + 1
        assert boxes["width"][n] == max(columns) - min(columns) + 1
        assert boxes["share"][n] == pytest.approx(len(places) / 77)
    with pytest.raises(TorchcapsError, match="no ink"):
        ink_boxes(Split(torch.zeros(2, 1, 3, 3, dtype=torch.uint8), torch.zeros(2)))


def test_distance_against_scipy():
    from scipy.stats import ks_2samp

    one, other = torch.randint(0, 9, (53,)).double(), torch.randint(2, 11, (71,)).double()
    expected = ks_2samp(one.numpy(), other.numpy()).statistic
    assert distance(one, other) == pytest.approx(expected, abs=1e-6)


def test_comparison_distinguishes_fit_and_8_px(capsys):
    fit, again, near = (
        torchcaps.data.load(name, seed=seed).test
        for name, seed in (("affnist-like:digits,copies=4", 0), ("affnist-like:digits,copies=4", 1),
                           ("affnist-like:digits,copies=4,shift=8", 0))
    )  # fmt: skip
    assert all(c.alike for c in compare_ink(fit, again).values())
    comparison = compare_ink(fit, near)
    assert (
        not comparison["top"].alike and not comparison["left"].alike and comparison["height"].alike
    )
    assert (
        main(
            [
                "data",
                "compare",
                "affnist-like:digits,copies=4",
                "affnist-like:digits,copies=4,shift=8",
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert printed.count("NOT alike") >= 2 and "height" in printed
    assert main(["data", "compare", "digits"]) == 2 and main(["data", "show", "digits", "x"]) == 2
    assert main(["data", "compare", "digits", "affnist-like:digits,copies=1"]) == 1
    assert "cannot be compared" in capsys.readouterr().err
