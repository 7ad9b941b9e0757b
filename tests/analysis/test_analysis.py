import numpy as np
import pytest
import torch

import torchcaps
from tests.conftest import TINY_CAPSNET
from torchcaps.analysis import (
    accuracy_under,
    compactness,
    draw_accuracy_under,
    draw_compactness,
    reconstructions,
    routing_map,
    traverse,
)
from torchcaps.analysis.compactness import from_uniform
from torchcaps.analysis.robustness import transformed
from torchcaps.analysis.traverse import tile
from torchcaps.data import Split
from torchcaps.errors import TorchcapsError


class Upright(torch.nn.Module):
    """Says 1 when the ink stands upright, else 0."""

    def forward(self, images, reconstruct=True):
        tall = images.sum(3).gt(0.5).sum((1, 2))
        wide = images.sum(2).gt(0.5).sum((1, 2))
        score = (tall - wide).float()
        return torchcaps.models.Output(torch.stack([-score, score], 1))


def test_accuracy_under_rotation_follows_the_images():
    images = torch.zeros(4, 1, 21, 21, dtype=torch.uint8)
    images[:, :, 3:18, 9:12] = 255
    split = Split(images, torch.ones(4).long())
    grid, accuracy = accuracy_under(Upright(), split, "rotation", (0.0, 30.0, 90.0, 180.0))
    assert grid.tolist() == [0, 30, 90, 180] and accuracy.tolist() == [1, 1, 0, 1]
    figure = draw_accuracy_under({"upright": (grid, accuracy)}, "rotation")
    assert figure.axes[0].get_lines()


@pytest.mark.parametrize("factor", ["rotation", "shear_x", "shear_y", "shift_x", "shift_y"])
def test_the_zero_of_every_transformation_changes_nothing(factor):
    images = torch.rand(2, 1, 9, 9)
    torch.testing.assert_close(transformed(images, factor, 0.0), images, atol=1e-5, rtol=0)
    torch.testing.assert_close(transformed(images, "scale", 1.0), images, atol=1e-5, rtol=0)


def test_traversal_moves_one_unit_of_one_capsule():
    model = torchcaps.create_model("capsnet", **TINY_CAPSNET).eval()
    image = torch.rand(1, 28, 28)
    values = (-0.5, 0.0, 0.5)
    drawn = traverse(model, image, values=values, label=3)
    assert drawn.shape == (4, 3, 1, 28, 28)
    still = reconstructions(model, image[None], torch.tensor([3]))
    for unit in range(4):
        np.testing.assert_allclose(drawn[unit, 1], still[0], atol=1e-6)
        assert np.abs(drawn[unit, 2] - still[0]).max() > 0
    with torch.no_grad():
        capsules = model(image[None]).capsules.clone()
        capsules[0, 3, 2] += 0.5
        expected = model.decode(capsules, torch.tensor([3]))[0].numpy()
    np.testing.assert_allclose(traverse(model, image, 2, values, 3)[0, 2], expected, atol=1e-6)


def test_routing_map_adds_up_to_the_children():
    model = torchcaps.create_model("capsnet", **TINY_CAPSNET).eval()
    image = torch.rand(1, 28, 28)
    coupling, received = routing_map(model, image)
    assert coupling.shape == (72, 10) and received.shape == (10, 6, 6)
    lengths = model(image[None]).primary[0].norm(dim=-1).reshape(6, 6, 2).sum(-1)
    np.testing.assert_allclose(received.sum(0), lengths.detach().numpy(), rtol=1e-4)


def test_models_without_such_a_thing_say_so():
    model = torchcaps.create_model("convnet-avg-small")
    for ask in (traverse, routing_map):
        with pytest.raises(TorchcapsError):
            ask(model, torch.rand(1, 28, 28))


def test_tile_puts_images_in_their_places():
    images = np.random.default_rng(0).random((2, 3, 1, 4, 5))
    canvas = tile(images)
    assert canvas.shape == (9, 17, 3)
    np.testing.assert_allclose(canvas[5:9, 6:11, 0], images[1, 1, 0])


class Reacting(torch.nn.Module):
    """Class units of which `num` follow the ink's centre of mass, and the others nothing."""

    def __init__(self, num):
        super().__init__()
        self.num = num

    def forward(self, images, reconstruct=True):
        place = torch.arange(images.shape[3], device=images.device, dtype=images.dtype)
        x = (images.sum((1, 2)) * place).sum(1) / images.sum((1, 2, 3))
        units = torch.zeros(len(images), 2, 8)
        units[:, 1, : self.num] = x[:, None]
        return torchcaps.models.Output(torch.zeros(len(images), 2), capsules=units)


def test_compactness_counts_the_units_that_react():
    """KL from uniform of variances shared by k of 8 units is log(8/k)."""
    images = torch.zeros(3, 1, 21, 21)
    images[:, :, 8:13, 8:13] = torch.rand(3, 1, 5, 5)
    labels = torch.ones(3).long()
    for num in (1, 2, 8):
        scores = compactness(Reacting(num), images, "shift_x", (-2, -1, 0, 1, 2), labels)
        assert scores == pytest.approx(np.full(3, np.log(8 / num)), abs=1e-6)
    assert draw_compactness({"a": {"rotation": 0.1, "scale": 0.2}}).axes[0].patches


def test_a_shear_along_y_is_one_along_x_of_the_transposed():
    images = torch.rand(2, 1, 9, 9)
    along_y = transformed(images, "shear_y", 0.3)
    torch.testing.assert_close(along_y.mT, transformed(images.mT, "shear_x", 0.3))
    bar = torch.zeros(1, 1, 21, 21)
    bar[:, :, 10, 4:17] = 1
    sheared = transformed(bar, "shear_y", 0.5)[0, 0]
    rows = sheared.argmax(0)
    assert rows[5] < rows[10] < rows[15]


def test_pooled_shares_ask_whether_it_is_always_the_same_units():
    always, never = np.eye(4)[[1, 1, 1, 1]], np.eye(4)
    assert np.allclose(from_uniform(always), np.log(4)) and np.allclose(
        from_uniform(never), np.log(4)
    )
    assert np.isclose(from_uniform(always.mean(0)), np.log(4))
    assert np.isclose(from_uniform(never.mean(0)), 0)


def test_a_transformation_of_ones_own_is_one_too():
    images = torch.zeros(3, 1, 21, 21)
    images[:, :, 8:13, 8:13] = torch.rand(3, 1, 5, 5)

    def aside(images, amount):
        return transformed(images, "shift_x", amount)

    own = compactness(Reacting(2), images, aside, (-1, 0, 1), torch.ones(3).long())
    named = compactness(Reacting(2), images, "shift_x", (-1, 0, 1), torch.ones(3).long())
    assert own.tolist() == named.tolist()
    with pytest.raises(TorchcapsError, match="amounts"):
        compactness(Reacting(2), images, aside)
    split = Split((255 * images).byte(), torch.ones(3).long())
    assert accuracy_under(Upright(), split, aside, (0.0,))[1].shape == (1,)
    with pytest.raises(TorchcapsError, match="grid"):
        accuracy_under(Upright(), split, aside)


def test_without_labels_it_is_the_capsule_of_the_predicted_class():
    model = torchcaps.create_model("capsnet", channels=4, num_types=2, hidden=(8,))
    images = torch.rand(3, 1, 28, 28)
    with torch.no_grad():
        said = model(images).logits.argmax(-1)
    assert compactness(model, images).tolist() == compactness(model, images, labels=said).tolist()
