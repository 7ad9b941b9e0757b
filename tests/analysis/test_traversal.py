import numpy as np
import pytest
import torch

import torchcaps
from tests.conftest import TINY_CAPSNET
from torchcaps.analysis import get_plot
from torchcaps.analysis.traversal import RANGE, WIDE, reconstructions, traverse, value_range
from torchcaps.errors import TorchcapsError


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


def test_the_range_follows_the_length_of_the_capsules():
    image = torch.rand(1, 28, 28)
    assert value_range(torchcaps.create_model("capsnet", **TINY_CAPSNET), image) == RANGE
    loose = torchcaps.create_model("capsnet", **TINY_CAPSNET, squash=False)
    with torch.no_grad():
        loose.classes.weight.mul_(1000)
    assert value_range(loose, image) == WIDE


def test_units_are_sorted_by_effect(digits):
    model = torchcaps.create_model("capsnet", **TINY_CAPSNET).eval()
    with torch.no_grad():
        model.decoder.net[0].weight.view(16, 10, 4)[:, :, 2] = 0  # unit 2 draws nothing
    found = get_plot("units").compute(model, digits)
    assert found["units"][-1] == 2 and found["effect"][2] == 0
    effects = found["effect"][found["units"]]
    assert (np.diff(effects) <= 0).all()


def test_models_without_capsules_raise():
    model = torchcaps.create_model("convnet-avg-small")
    with pytest.raises(TorchcapsError):
        traverse(model, torch.rand(1, 28, 28))
