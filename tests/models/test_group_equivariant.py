"""GE-CapsNet: its logits at quarter turns and at other angles; and it learns."""

import math

import pytest
import torch

import torchcaps
from torchcaps.errors import TorchcapsError
from torchcaps.routing.group import rotated

SMALL = {"num_types": (4, 6), "channels": 6}


def test_parameters():
    model = torchcaps.create_model("ge-capsnet", image_size=40)
    assert model.num_parameters == 125_566
    assert [layer.window for layer in model.layers] == [2, 2, 2, 5]


def test_quarter_turns_of_digits_in_float32(digits):
    torch.manual_seed(0)
    model = torchcaps.create_model("ge-capsnet", **SMALL).eval()
    images = digits.test.images[:16].float() / 255
    with torch.no_grad():
        before, after = model(images).logits, model(images.rot90(1, (2, 3))).logits
    torch.testing.assert_close(after, before, atol=1e-5, rtol=0)
    assert before.std(0).min() > 1e-4


@pytest.mark.parametrize("size", [24, 28])
@pytest.mark.parametrize("quarter", [1, 2, 3])
def test_a_quarter_turn_changes_no_logit_and_turns_all_poses(size, quarter):
    torch.manual_seed(0)
    model = torchcaps.create_model("ge-capsnet", image_size=size, **SMALL).eval()
    images = torch.rand(3, 1, size, size)
    with torch.no_grad():
        before, after = model(images), model(images.rot90(quarter, (2, 3)))
    torch.testing.assert_close(after.logits, before.logits, atol=1e-5, rtol=0)
    model, images = model.double(), images.double()
    with torch.no_grad():
        before, after = model(images), model(images.rot90(quarter, (2, 3)))
    torch.testing.assert_close(after.logits, before.logits, atol=1e-10, rtol=0)
    angle = -quarter * math.pi / 2  # rot90 turns against the clock, and rows go down
    by = torch.tensor([math.cos(angle), math.sin(angle)], dtype=torch.float64)
    for one, two in zip(before.layers, after.layers, strict=True):
        expected, active = rotated(one.poses, by), one.activations
        if expected.dim() == 5:
            expected, active = (t.rot90(quarter, (1, 2)) for t in (expected, active))
        torch.testing.assert_close(two.poses, expected, atol=1e-10, rtol=0)
        torch.testing.assert_close(two.activations, active, atol=1e-10, rtol=0)


def test_it_learns(digits):
    torch.manual_seed(0)
    model = torchcaps.create_model("ge-capsnet", image_size=14, num_types=(8,), channels=8)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    images, labels = digits.train.images[:128].float() / 255, digits.train.labels[:128]
    images = torch.nn.functional.avg_pool2d(images, 2)
    losses = []
    for step in range(24):
        batch = slice(step % 4 * 32, step % 4 * 32 + 32)
        loss = torch.nn.functional.cross_entropy(model(images[batch]).logits, labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_bad_fields():
    with pytest.raises(TorchcapsError, match="square images"):
        torchcaps.create_model("ge-capsnet", image_size=28, image_width=32)
