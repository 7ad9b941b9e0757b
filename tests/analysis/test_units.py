import numpy as np
import pytest
import torch

import torchcaps
from torchcaps.analysis import compactness, draw_compactness
from torchcaps.analysis.robustness import transformed
from torchcaps.analysis.units import from_uniform, units
from torchcaps.errors import TorchcapsError
from torchcaps.layers import Capsules
from torchcaps.models import Output


class Reacting(torch.nn.Module):
    """Class units of which `num` follow the ink's centre of mass, and the others nothing."""

    def __init__(self, num):
        super().__init__()
        self.num = num

    def encode(self, images):
        place = torch.arange(images.shape[3], device=images.device, dtype=images.dtype)
        x = (images.sum((1, 2)) * place).sum(1) / images.sum((1, 2, 3))
        units = torch.zeros(len(images), 2, 8)
        units[:, 1, : self.num] = x[:, None]
        return Output(torch.zeros(len(images), 2), layers=(Capsules(units),))


def test_compactness_counts_the_units_that_react():
    """KL from uniform of variances shared by k of 8 units is log(8/k)."""
    images = torch.zeros(3, 1, 21, 21)
    images[:, :, 8:13, 8:13] = torch.rand(3, 1, 5, 5)
    labels = torch.ones(3).long()
    for num in (1, 2, 8):
        scores = compactness(Reacting(num), images, "shift_x", (-2, -1, 0, 1, 2), labels)
        assert scores == pytest.approx(np.full(3, np.log(8 / num)), abs=1e-6)
    assert draw_compactness({"a": {"rotation": 0.1, "scale": 0.2}}).axes[0].patches


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


def test_without_labels_it_is_the_capsule_of_the_predicted_class():
    model = torchcaps.create_model("capsnet", channels=4, num_types=2, hidden=(8,))
    images = torch.rand(3, 1, 28, 28)
    with torch.no_grad():
        said = model(images).logits.argmax(-1)
    assert compactness(model, images).tolist() == compactness(model, images, labels=said).tolist()


def test_units_without_groups_are_all_scored():
    images, labels = torch.rand(2, 1, 28, 28), torch.tensor([3, 7])
    plain = torchcaps.create_model("convnet-r", channels=8, hidden=(8,))
    assert torch.equal(units(plain, images, labels), plain.encode(images).capsules.flatten(1))
    grouped = torchcaps.create_model("convnet-cr", channels=8, hidden=(8,))
    assert torch.equal(units(grouped, images, labels)[1], grouped.encode(images).capsules[1, 7])
