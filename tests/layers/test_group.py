"""Layers of group equivariant capsules: any rotation of poses and places rotates the outputs."""

import math

import pytest
import torch

from torchcaps.errors import TorchcapsError
from torchcaps.layers.group import GradientPoses, GroupCaps, GroupConv, grid_positions
from torchcaps.routing.group import group_routing, inverse_rotation, rotated, unit

ANGLES = (0.3, 1.0, 2.2, 4.4)
DOUBLE = {"dtype": torch.float64}


def turn(angle):
    return torch.tensor([math.cos(angle), math.sin(angle)], **DOUBLE)


def poses(*shape):
    return unit(torch.randn(*shape, 2, **DOUBLE))


def close(a, b, atol=1e-10):
    torch.testing.assert_close(a, b, atol=atol, rtol=0)


def test_poses_are_a_group():
    one, two = poses(5), poses(5)
    close(rotated(one, two), rotated(two, one))
    close(rotated(inverse_rotation(one), one)[:, 1], torch.zeros(5, **DOUBLE))
    matrix = torch.stack([one, torch.stack([-one[:, 1], one[:, 0]], -1)], -1)
    close(rotated(one, two), (matrix @ two[..., None])[..., 0])


@pytest.mark.parametrize("num_iters", [0, 1, 3])
def test_routing_against_loops(num_iters):
    torch.manual_seed(0)
    z, active, angles = poses(2, 5), torch.rand(2, 5, **DOUBLE), torch.randn(2, 5, 3, **DOUBLE)
    alpha, beta = torch.randn(2, 3, **DOUBLE)
    found = group_routing(z, active, angles, alpha, beta, num_iters)
    for b in range(2):
        for j in range(3):
            votes = [
                complex(*z[b, i].tolist()) * complex(*turn(float(angles[b, i, j])).tolist())
                for i in range(5)
            ]
            weights = active[b].tolist()
            for t in range(num_iters + 1):
                total = sum(w * v for w, v in zip(weights, votes, strict=True))
                mean = total / math.sqrt(abs(total) ** 2 + 1e-6)
                agreement = [(1 + (mean * v.conjugate()).real) / 2 for v in votes]
                if t < num_iters:
                    own = active[b].tolist()
                    weights = [a * w for a, w in zip(own, agreement, strict=True)]
            logit = sum(w * a for w, a in zip(weights, agreement, strict=True)) / 5
            logit = float(alpha[j]) * logit + float(beta[j]) - 1
            mass = float(active[b].sum())
            close(found[0][b, j], torch.tensor([mean.real, mean.imag], **DOUBLE))
            assert found[1][b, j].item() == pytest.approx(
                mass / (mass + 1e-3) / (1 + math.exp(-logit)), abs=1e-10
            )
    with pytest.raises(TorchcapsError, match="at least 0"):
        group_routing(z, active, angles, alpha, beta, -1)


def test_gradients():
    torch.manual_seed(0)
    tensors = (torch.randn(1, 4, 2), torch.rand(1, 4), torch.randn(1, 4, 3), *torch.randn(2, 3))
    inputs = tuple(t.double().requires_grad_() for t in tensors)
    assert torch.autograd.gradcheck(lambda *t: group_routing(*t, 2)[:2], inputs)


@pytest.mark.parametrize("angle", ANGLES)
@pytest.mark.parametrize("window", [2, 3])
def test_capsules_are_equivariant_at_any_angle(window, angle):
    """Poses and the places of children turn: so do parents, and nothing else changes."""
    torch.manual_seed(0)
    layer = GroupCaps(in_caps=5, out_caps=3, window=window, num_iters=2).double()
    z, active = poses(4, window**2, 5), torch.rand(4, window**2, 5, **DOUBLE)
    places = layer.positions
    before = layer.route(z, active, places)
    after = layer.route(rotated(z, turn(angle)), active, rotated(places, turn(angle)))
    close(after[0], rotated(before[0], turn(angle)))
    close(after[1], before[1])
    close(after[2], before[2])
    still = layer.route(rotated(z, turn(angle)), active, places)
    assert (still[1] - before[1]).abs().max() > 1e-6, "places count"


@pytest.mark.parametrize("angle", ANGLES)
def test_kernels_turn_with_poses(angle):
    torch.manual_seed(0)
    conv = GroupConv(in_channels=2, num_types=3).double()
    z = poses(4, 3)
    for offset in grid_positions(3).double():
        before = conv.blend(z, offset)
        close(conv.blend(rotated(z, turn(angle)), rotated(offset, turn(angle))), before)
        close(before.sum(-1), torch.ones(4, 3, **DOUBLE), atol=1e-9)


@pytest.mark.parametrize("width", [2, 3])  # blends products, and features
def test_convolution_against_a_loop(width):
    torch.manual_seed(0)
    conv = GroupConv(in_channels=2, num_types=3, width=width, points=5).double()
    features, z = torch.randn(1, 2, 4, 5, **DOUBLE), poses(1, 4, 5, 3)
    found = conv(features, z).detach()
    weight = conv.weight.detach().view(3, width, 5, 5, 2)
    for y, x, i, n in [(0, 0, 0, 0), (1, 2, 1, 1), (3, 4, 2, 0), (2, 1, 2, 1)]:
        total = 0.0
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                if not (0 <= y + dy < 4 and 0 <= x + dx < 5):
                    continue
                cos, sin = z[0, y, x, i].tolist()
                u, v = cos * dx + sin * dy, cos * dy - sin * dx
                u, v = ((w / math.sqrt(2) + 1) * 2 for w in (u, v))
                for row in range(5):
                    for column in range(5):
                        share = max(0, 1 - abs(v - row)) * max(0, 1 - abs(u - column))
                        value = weight[i, n, row, column] @ features[0, :, y + dy, x + dx]
                        total += share * float(value)
        assert found[0, i * width + n, y, x].item() == pytest.approx(total, abs=1e-10)


def test_gradients_of_images_turn_with_them():
    images = torch.rand(2, 1, 6, 6, **DOUBLE)
    layer = GradientPoses().double()
    z, length, _ = layer(images)
    turned, lengths, _ = layer(images.rot90(1, (2, 3)))  # against the clock, as rows go down
    close(lengths, length.rot90(1, (1, 2)))
    close(turned, rotated(z.rot90(1, (1, 2)), turn(-math.pi / 2)))


def test_a_group_convolution_has_one_output_for_each_pose():
    layer = GroupConv(in_channels=3, num_types=2)
    assert layer.weight.shape == (2 * 5**2, 3) and "3 -> 2 poses x 1, 5^2" in repr(layer)


def test_group_capsules_agree_once_unless_told():
    assert GroupCaps(in_caps=2, out_caps=3, window=2).num_iters == 1
