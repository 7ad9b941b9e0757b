"""The stacked capsule autoencoder's objective, each term by a loop over its indices."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import torchcaps
from torchcaps.layers.parts import geometric
from torchcaps.models.scae.model import DUMMY

SIZES = {"num_caps": (3, 5), "template_size": 4, "image_size": 24, "channels": 4, "features": 2,
         "width": 4, "depth": 2, "code": 6, "padding": 1, "num_classes": 7}  # fmt: skip


def made(**fields):
    torch.manual_seed(0)
    model = torchcaps.create_model("scae", **{**SIZES, **fields}).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


def log_normal(value, mean, std):
    return -0.5 * ((value - mean) / std) ** 2 - math.log(std) - 0.5 * math.log(2 * math.pi)


def test_pixels_are_a_mixture_over_templates_and_background():
    model, images = made(), torch.rand(2, 1, 24, 24).double()
    weights, means = model.mixture(model.parts(images))
    torch.testing.assert_close(weights.exp().sum(1), torch.ones(2, 1, 24, 24).double())
    whole = torch.zeros(2).double()
    for b in range(2):
        for y in range(24):
            for x in range(24):
                value = images[b, 0, y, x]
                each = [weights[b, i, 0, y, x].exp() * log_normal(value, m, 1.0).exp()
                        for i, m in enumerate(means[b, :, 0, y, x])]  # fmt: skip
                whole[b] += sum(each).log()
    torch.testing.assert_close(model.bound(images).terms["image"], whole)


def authors_pose(numbers):
    """Shear times scales times rotation, as matrices, with the authors' nonlinearities."""
    scale_x, scale_y, angle, shear, x, y = (float(n) for n in numbers)
    sigmoid = lambda v: 1 / (1 + math.exp(-v)) + 0.01  # noqa: E731
    angle = 2 * math.pi * angle
    cos, sin = math.cos(angle), math.sin(angle)
    linear = np.array([[1, math.tanh(5 * shear)], [0, 1]])
    linear = linear @ np.diag([sigmoid(scale_x), sigmoid(scale_y)])
    linear = linear @ np.array([[cos, -sin], [sin, cos]])
    return np.concatenate([linear, [[math.tanh(5 * x)], [math.tanh(5 * y)]]], 1)


def test_poses_are_composed_as_the_authors_do():
    torch.manual_seed(0)
    numbers = torch.randn(20, 6).double() / 2
    poses = geometric(numbers, 0.5, rotate="first")
    for pose, six in zip(poses, numbers, strict=True):
        torch.testing.assert_close(pose, torch.from_numpy(authors_pose(six)))
    other = geometric(numbers, 0.5)
    assert (other - poses).abs().max() > 0.3
    plain = numbers.clone()
    plain[:, 1], plain[:, 3] = plain[:, 0], 0  # equal scales, no shear: rotations commute
    torch.testing.assert_close(geometric(plain, 0.5), geometric(plain, 0.5, rotate="first"))


def test_the_image_likelihood_is_that_of_the_authors():
    """From the encoder's numbers: poses, templates on a grid with aligned corners, mixture."""
    model, images = made(), torch.rand(2, 1, 24, 24).double()
    size, side = 4, 24
    with torch.no_grad():
        numbers, found = model.find(images), model.bound(images).terms["image"]
        colors = model.tint(numbers[..., 6:8]).sigmoid()
        shapes, mixing = model.templates.sigmoid().numpy(), model.mixing.numpy()
        brightness, weight = model.background[0].sigmoid(), F.softplus(model.background[1])
    line = np.linspace(-1, 1, side)
    for b in range(2):
        logits = np.full((6, side, side), float(weight))
        means = np.full((6, side, side), float(brightness))
        for i in range(5):
            pose = authors_pose(numbers[b, i, :6])
            back = np.linalg.inv(pose[:, :2])
            presence = 1 / (1 + math.exp(-float(numbers[b, i, 8])))
            for row, column in product(range(side), range(side)):
                at = back @ (np.array([line[column], line[row]]) - pose[:, 2])
                u, v = (at + 1) / 2 * (size - 1)
                color = mix = 0.0
                for p, q in product(range(size), range(size)):
                    share = max(0, 1 - abs(v - p)) * max(0, 1 - abs(u - q))
                    color += share * shapes[i, 0, p, q]
                    mix += share * mixing[i, 0, p, q]
                means[i, row, column] = color * float(colors[b, i, 0])
                logits[i, row, column] = mix + math.log(presence)
        shares = np.exp(logits) / np.exp(logits).sum(0)
        density = np.exp(-((images[b, 0].numpy() - means) ** 2) / 2) / math.sqrt(2 * math.pi)
        whole = np.log((shares * density).sum(0)).sum()
        assert found[b].item() == pytest.approx(whole, abs=1e-9)


def test_terms_are_those_of_loops():
    model, images = made(), torch.rand(4, 1, 24, 24).double()
    parts = model.parts(images)
    votes, terms, c = model.votes(parts), model.bound(images).terms, model.config
    shares = votes.joint.softmax(1)
    for b in range(4):
        likely = 0.0
        for i in range(5):
            total = sum(votes.joint[b, j, i].exp() for j in range(4))
            likely += parts.logits[b, i].sigmoid() * total.log()
        torch.testing.assert_close(terms["parts"][b], likely)
        mass = shares[b, :-1].sum(1)
        mass = mass / mass.sum()
        unsure = -sum(m * m.log() for m in mass)
        torch.testing.assert_close(terms["posterior_within"][b], -0.7 * unsure)
        off = sum(votes.presence[b]) - 3 / 7
        torch.testing.assert_close(terms["prior_within"][b], -2 * off**2)
        torch.testing.assert_close(terms["dynamic"][b], -10 * votes.dynamic[b])
    assert bool((votes.joint[:, -1] == DUMMY).all())
    used = shares[:, :-1].sum((0, 2))
    used = used / used.sum()
    torch.testing.assert_close(terms["posterior_between"][0], -0.2 * sum(u * u.log() for u in used))
    uneven = sum((votes.presence[:, j].sum() - 4 / c.num_classes) ** 2 for j in range(3)) / 3
    torch.testing.assert_close(terms["prior_between"][0], -0.35 * uneven)


def test_what_objects_are_asked_does_not_move_parts():
    model, images = made(), torch.rand(3, 1, 24, 24).double()
    terms = model.bound(images).terms
    asked = sum(t.sum() for name, t in terms.items() if name != "image")
    gradients = torch.autograd.grad(asked, [model.templates, model.static], allow_unused=True)
    assert gradients[0] is None and gradients[1].abs().sum() > 0
    parts = model.parts(images)
    seen = model.votes(parts)
    assert torch.autograd.grad(seen.joint.sum(), parts.poses, allow_unused=True)[0] is None


@pytest.mark.parametrize("fields", [{}, {"attention": "hard"}], ids=str)
def test_noise_is_of_training_unless_asked_for(fields):
    model, images = made(**fields), torch.rand(3, 1, 24, 24).double()
    once, again = (model.representations(images)["posterior"] for _ in range(2))
    assert torch.equal(once, again)
    model = made(test_noise=True, **fields)
    once, again = (model.representations(images)["posterior"] for _ in range(2))
    assert not torch.equal(once, again) and once.isfinite().all()


def test_hard_attention_sees_the_most_present_part_alone():
    gather = made(attention="hard").gather
    members, presence = (
        torch.rand(2, 5, gather.narrow.in_features).double(),
        torch.rand(2, 5).double(),
    )
    presence[:, 2] = 1.0
    with torch.no_grad():
        found = gather(members, presence, hard=True)
        others = members.clone()
        others[:, [0, 1, 3, 4]] += 1
        torch.testing.assert_close(gather(others, presence, hard=True), found)
        assert not torch.allclose(gather(others, presence), gather(members, presence))
