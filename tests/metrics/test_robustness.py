import pytest
import torch

from torchcaps.analysis.robustness import accuracy_lines
from torchcaps.data import Split
from torchcaps.errors import TorchcapsError
from torchcaps.metrics.robustness import GRIDS, accuracy_under, transformed
from torchcaps.models import Output


class Upright(torch.nn.Module):
    """Predict 1 for an upright bar, else 0."""

    def encode(self, images):
        tall = images.sum(3).gt(0.5).sum((1, 2))
        wide = images.sum(2).gt(0.5).sum((1, 2))
        score = (tall - wide).float()
        return Output(torch.stack([-score, score], 1))


def test_accuracy_under_rotation_follows_the_images():
    images = torch.zeros(4, 1, 21, 21, dtype=torch.uint8)
    images[:, :, 3:18, 9:12] = 255
    split = Split(images, torch.ones(4).long())
    grid, accuracy = accuracy_under(Upright(), split, "rotation", (0.0, 30.0, 90.0, 180.0))
    assert grid.tolist() == [0, 30, 90, 180] and accuracy.tolist() == [1, 1, 0, 1]
    figure = accuracy_lines({"upright": (grid, accuracy)}, "rotation").figure()
    assert figure.axes[0].get_lines()


@pytest.mark.parametrize("factor", ["rotation", "shear_x", "shear_y", "shift_x", "shift_y"])
def test_zero_amount_is_the_identity(factor):
    images = torch.rand(2, 1, 9, 9)
    torch.testing.assert_close(transformed(images, factor, 0.0), images, atol=1e-5, rtol=0)
    torch.testing.assert_close(transformed(images, "scale", 1.0), images, atol=1e-5, rtol=0)


def test_a_shear_along_y_is_one_along_x_of_the_transposed():
    images = torch.rand(2, 1, 9, 9)
    along_y = transformed(images, "shear_y", 0.3)
    torch.testing.assert_close(along_y.mT, transformed(images.mT, "shear_x", 0.3))
    bar = torch.zeros(1, 1, 21, 21)
    bar[:, :, 10, 4:17] = 1
    sheared = transformed(bar, "shear_y", 0.5)[0, 0]
    rows = sheared.argmax(0)
    assert rows[5] < rows[10] < rows[15]


def test_custom_transformations_need_a_grid():
    split = Split(torch.zeros(3, 1, 21, 21, dtype=torch.uint8), torch.ones(3).long())

    def aside(images, amount):
        return transformed(images, "shift_x", amount)

    assert accuracy_under(Upright(), split, aside, (0.0,))[1].shape == (1,)
    with pytest.raises(TorchcapsError, match="grid"):
        accuracy_under(Upright(), split, aside)


@pytest.mark.parametrize("factor", GRIDS)
def test_amounts_rise_and_lie_evenly_about_no_change(factor):
    grid, middle = GRIDS[factor], 1.0 if factor == "scale" else 0.0
    assert list(grid) == sorted(set(grid)) and middle in grid
    assert [amount - middle for amount in grid] == pytest.approx([middle - a for a in grid[::-1]])
