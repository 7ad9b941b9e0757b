"""Points, their patterns, and objects that explain them: by loops, and where the truth is known."""

import math
from itertools import permutations, product

import numpy as np
import pytest
import torch

import torchcaps
from torchcaps.errors import TorchcapsError
from torchcaps.metrics.base import prepare
from torchcaps.papers.generative.constellations.data import PATTERNS
from torchcaps.papers.generative.constellations.model import NOWHERE
from torchcaps.papers.generative.constellations.point_scae import NONE
from torchcaps.papers.generative.constellations.segments import matched

SIZES = {"width": 8, "heads": 2, "depth": 1}


@pytest.fixture(scope="module")
def scenes():
    return torchcaps.data.load("constellations,count=200")


def test_patterns_are_squares_and_triangles(scenes):
    """All sides of a square are alike whatever its turn; a triangle has two of three alike."""
    images, labels = scenes.test.images.float() / 255, scenes.test.labels
    points = images.flatten(2).transpose(1, 2)
    seen = set()
    for scene, pattern in zip(points, labels, strict=True):
        assert torch.equal(scene[:, 2] == 1, pattern >= 0)
        for number, corners in enumerate(PATTERNS):
            here = scene[pattern == number, :2]
            assert len(here) in (0, len(corners))
            if not len(here):
                continue
            seen.add(number)
            apart = torch.pdist(here).sort().values
            scale = apart[-1]
            if len(corners) == 4:
                assert (apart[:4] - apart[0]).abs().max() < 0.02 + 0.05 * scale
            else:
                assert (apart[1:] - apart[1]).abs().max() < 0.02 + 0.05 * scale
    assert seen == {0, 1, 2} and (labels >= 0).any(1).all()


def test_training_scenes_are_drawn_anew_and_the_same_for_a_number(scenes):
    rows = torch.arange(5)
    one, same, other = (scenes.training(rows, n) for n in (rows, rows, rows + 5))
    assert torch.equal(one.images, same.images) and not torch.equal(one.images, other.images)
    with pytest.raises(TorchcapsError, match="absent"):
        torchcaps.data.load("constellations,absent=1")


def test_which_objects_are_on_is_summed_over_all_combinations(scenes):
    torch.manual_seed(0)
    model = torchcaps.create_model("constellation", **SIZES).double().eval()
    images = scenes.test.batch(slice(0, 3)).images.double()
    with torch.no_grad():
        poses = model.find(images)
        places, there = model.points(images)
        rates = model.shares.sigmoid()
        std = 0.01 + torch.nn.functional.softplus(model.spread)
        prior = model.prior.sigmoid()
        for b in range(3):
            whole = 0.0
            for on in product((0, 1), repeat=3):
                log = sum((prior if o else 1 - prior).log() for o in on)
                log -= sum(rates[j].sum() for j in range(3) if on[j])
                for p in range(16):
                    if not there[b, p]:
                        continue
                    density = torch.tensor(NOWHERE).double().exp()
                    for j, v in product(range(3), range(4)):
                        if on[j]:
                            at = poses[b, j, :, :2] @ model.places[j, v] + poses[b, j, :, 2]
                            normal = torch.distributions.Normal(at, std[j, v])
                            density += rates[j, v] * normal.log_prob(places[b, p]).sum().exp()
                    log += density.log()
                whole += log.exp()
            torch.testing.assert_close(model.bound(images).terms["points"][b], whole.log())


def test_the_autoencoders_likelihood_is_that_of_loops(scenes):
    torch.manual_seed(0)
    model = torchcaps.create_model("constellation-scae", **SIZES).double().eval()
    images = scenes.test.batch(slice(0, 3)).images.double()
    with torch.no_grad():
        found, terms = model.find(images), model.bound(images).terms
        places, there = model.points(images)
        none = torch.tensor(NONE).double().exp()
        for b in range(3):
            weights = found.weights[b].exp()
            total, whole = weights.sum() + none, 0.0
            for p in range(16):
                if not there[b, p]:
                    continue
                density = none * none
                for j, v in product(range(3), range(4)):
                    normal = torch.distributions.Normal(found.votes[b, j, v], found.std[b, j, v])
                    density += weights[j, v] * normal.log_prob(places[b, p]).sum().exp()
                whole += (density / total).log()
            torch.testing.assert_close(terms["points"][b], whole)


def test_the_autoencoders_votes_and_penalties_are_those_of_its_authors(scenes):
    """Votes by composed similarities; entropies of votes over all points, absent ones too."""
    torch.manual_seed(0)
    model = torchcaps.create_model("constellation-scae", **SIZES).double().eval()
    images = scenes.test.batch(slice(0, 5)).images.double()
    votes = list(product(range(3), range(4)))
    with torch.no_grad():
        found, terms = model.find(images), model.bound(images).terms
        numbers = model.describe(images)
        places, there = model.points(images)
    assert not there.all() and there.any()

    def matrix(scale, angle, x, y):
        scale, angle = 1 / (1 + math.exp(-scale)) + 0.01, 2 * math.pi * angle
        cos, sin = scale * math.cos(angle), scale * math.sin(angle)
        return np.array([[cos, -sin, math.tanh(5 * x)], [sin, cos, math.tanh(5 * y)], [0, 0, 1]])

    mass = np.zeros((5, 12))
    for b in range(5):
        change = numbers[b, :, 5:29].view(3, 4, 6)
        for j, v in votes:
            whole = matrix(*(float(k) for k in numbers[b, j, 1:5]))
            six = (change[j, v] + model.places[j, v]).tolist()
            vote = (whole @ matrix(six[0], six[2], six[4], six[5]))[:2, 2]
            np.testing.assert_allclose(found.votes[b, j, v].numpy(), vote, atol=1e-9)
        dynamic = float(change.square().sum() / 2)
        assert terms["dynamic"][b].item() == pytest.approx(-10 * dynamic, abs=1e-9)
        for p in range(16):
            joint = []
            for j, v in votes:
                std = float(found.std[b, j, v])
                away = ((places[b, p] - found.votes[b, j, v]) / std).square().sum().item()
                log = float(found.weights[b, j, v]) - 2 * math.log(std) - math.log(2 * math.pi)
                joint.append(math.exp(log - away / 2))
            mass[b] += np.array(joint) / (sum(joint) + math.exp(2 * NONE))

    def unsure(mass):
        shares = mass / mass.sum()
        return -(shares * np.log(shares)).sum()

    within = [-10 * unsure(mass[b]) for b in range(5)]
    np.testing.assert_allclose(terms["posterior_within"].numpy(), within, atol=1e-6)
    between = 10 * unsure(mass.sum(0))
    np.testing.assert_allclose(terms["posterior_between"].numpy(), between, atol=1e-6)


@pytest.mark.parametrize("name", ["constellation", "constellation-scae"])
def test_it_learns_and_is_saved(name, scenes, tmp_path):
    torch.manual_seed(0)
    model = torchcaps.create_model(name, **SIZES)
    images = scenes.test.batch(slice(0, 8)).images
    sum(t.mean() for t in model.bound(images).terms.values()).backward()
    for key, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, key
    model.eval().save_pretrained(tmp_path / "model")
    again = torchcaps.load(tmp_path / "model").eval()
    assert torch.equal(again.owners(images), model.owners(images))
    with pytest.raises(TorchcapsError, match="three channels"):
        torchcaps.create_model(name, in_channels=1)


def test_em_finds_objects_with_patterns_that_are_given(scenes):
    """With the true patterns, EM from many starts tells most points apart, and never gets worse."""
    model = torchcaps.create_model("constellation", **SIZES, min_std=0.02).eval()
    with torch.no_grad():
        for number, pattern in enumerate(PATTERNS):
            corners = torch.tensor(pattern)
            model.places[number, : len(corners)] = corners
            model.shares[number] = torch.where(torch.arange(4) < len(corners), 5.0, -9.0)
        model.spread.fill_(-3.0)
    batch = scenes.test.batch(slice(0, 12))
    with torch.no_grad():
        start = model.find(batch.images)
        rounds = [model.solve(batch.images, start, n) for n in range(6)]
        heights = [model.scenes(batch.images, x).amax(1) + model.log_prior(x) for x in rounds]
    steps = torch.stack(heights).diff(dim=0)
    assert (steps > -1e-4).all() and (steps[0] > 0.5).all()
    few, many = (
        float(matched(model.owners(batch.images, 20, starts), batch.labels).sum())
        / float((batch.labels >= 0).sum())
        for starts in (1, 30)
    )
    assert many > few and many > 0.75


def test_matching_is_the_best_of_all_orders():
    owners = torch.tensor([[2, 2, 0, 0, -1], [1, 1, 1, 0, 0]])
    labels = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 1, 1, -1]])
    assert matched(owners, labels).tolist() == [4, 3]
    for order in permutations(range(3)):
        swapped = torch.tensor([*order, -1])[owners]
        assert matched(swapped, labels).tolist() == [4, 3]


def test_segmentation_is_a_measure(scenes):
    model = torchcaps.create_model("constellation", **SIZES).eval()
    texts = ["segmentation", "segmentation,solved=2", "segmentation,solved=2,starts=2"]
    lines = []
    for taken in prepare(texts, scenes, "constellations"):
        taken.check(model)
        lines += taken.evaluate(model)
    assert [x.get("features", "") for x in lines] == [
        "", "EM from the encoder", "EM from 2 random starts",
    ]  # fmt: skip
    assert all(0 < x["value"] <= 1 for x in lines)
