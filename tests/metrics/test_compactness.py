import numpy as np
import pytest
import torch

import torchcaps
from torchcaps.errors import TorchcapsError
from torchcaps.layers import Capsules
from torchcaps.metrics.compactness import AMOUNTS, compactness, kl_from_uniform, units
from torchcaps.metrics.robustness import transformed
from torchcaps.models import Output


class Reacting(torch.nn.Module):
    """Class units, `num` of which follow the center of mass; the others are constant."""

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


def test_pooled_score_is_high_for_always_the_same_units():
    always, never = np.eye(4)[[1, 1, 1, 1]], np.eye(4)
    assert np.allclose(kl_from_uniform(always), np.log(4)) and np.allclose(
        kl_from_uniform(never), np.log(4)
    )
    assert np.isclose(kl_from_uniform(always.mean(0)), np.log(4))
    assert np.isclose(kl_from_uniform(never.mean(0)), 0)


def test_custom_transformation():
    images = torch.zeros(3, 1, 21, 21)
    images[:, :, 8:13, 8:13] = torch.rand(3, 1, 5, 5)

    def aside(images, amount):
        return transformed(images, "shift_x", amount)

    own = compactness(Reacting(2), images, aside, (-1, 0, 1), torch.ones(3).long())
    named = compactness(Reacting(2), images, "shift_x", (-1, 0, 1), torch.ones(3).long())
    assert own.tolist() == named.tolist()
    with pytest.raises(TorchcapsError, match="amounts"):
        compactness(Reacting(2), images, aside)


def test_default_labels_are_the_predicted_classes():
    model = torchcaps.create_model("capsnet", channels=4, num_types=2, hidden=(8,))
    images = torch.rand(3, 1, 28, 28)
    with torch.no_grad():
        predicted = model(images).logits.argmax(-1)
    assert (
        compactness(model, images).tolist() == compactness(model, images, labels=predicted).tolist()
    )


def test_units_without_groups_are_all_scored():
    images, labels = torch.rand(2, 1, 28, 28), torch.tensor([3, 7])
    plain = torchcaps.create_model("convnet-r", channels=8, hidden=(8,))
    assert torch.equal(units(plain, images, labels), plain.encode(images).capsules.flatten(1))
    grouped = torchcaps.create_model("convnet-cr", channels=8, hidden=(8,))
    assert torch.equal(units(grouped, images, labels)[1], grouped.encode(images).capsules[1, 7])


@pytest.mark.parametrize("factor", AMOUNTS)
def test_amounts_rise_and_lie_evenly_about_no_change(factor):
    amounts, middle = np.array(AMOUNTS[factor]), 1.0 if factor == "scale" else 0.0
    steps = np.diff(amounts)
    assert amounts[4] == middle and (steps > 0).all()
    assert steps == pytest.approx(np.full(8, steps[0]))
