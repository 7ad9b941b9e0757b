"""The stacked capsule autoencoder's objective, each term by a loop over its indices."""

import math

import pytest
import torch

import torchcaps
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
