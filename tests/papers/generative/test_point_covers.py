"""Covers of points by objects: against lists and loops of everything, and where truth is known."""

from itertools import product
from math import isclose

import pytest
import torch
from torch.distributions import MultivariateNormal, Normal
from torch.nn import functional as F

import torchcaps
from torchcaps.errors import TorchcapsError
from torchcaps.papers.generative.constellations.covers import covers
from torchcaps.papers.generative.constellations.data import PATTERNS
from torchcaps.papers.generative.constellations.model import NOWHERE, design_of, placed, pose_of
from torchcaps.papers.generative.constellations.segments import matched


@pytest.fixture(scope="module")
def scenes():
    return torchcaps.data.load("constellations,count=200")


def small(**fields):
    """A model with parameters that are all different, in float64."""
    torch.manual_seed(0)
    model = torchcaps.create_model("constellation-covers", **fields).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def scene(points: int) -> torch.Tensor:
    """Points at random places, of those that are kept in an image."""
    images = torch.zeros(1, 16, 3, dtype=torch.float64)
    images[0, 16 - points :, :2] = torch.rand(points, 2, dtype=torch.float64)
    images[0, 16 - points :, 2] = 1
    return images.mT.unflatten(2, (4, 4))


@pytest.mark.parametrize(
    ("points", "objects", "most"),
    [(0, 2, 2), (3, 1, 4), (4, 2, 2), (5, 2, 2), (5, 3, 2), (6, 2, 4)],
)
def test_covers_are_all_that_have_the_fewest_strays(points, objects, most):
    wanted = []
    for owners in product(range(-1, objects), repeat=points):
        if all(owners.count(j) <= most for j in range(objects)):
            wanted.append(owners)
    fewest = min(owners.count(-1) for owners in wanted)
    ways = covers(points, objects, most)
    assert ways.strays == fewest
    has = ways.members[ways.groups]
    found = torch.where(has.any(1), has.int().argmax(1), -1)
    assert (has.sum(1) <= 1).all() and len(ways.groups) == len(set(map(tuple, found.tolist())))
    assert {tuple(x) for x in found.tolist()} == {x for x in wanted if x.count(-1) == fewest}
    place = 1
    for size, orders in ways.orders.items():
        assert orders.shape[2] == size and len(orders.unique(dim=0)) == len(orders)
        for group in orders:
            assert torch.equal(ways.members[place].nonzero()[:, 0], group[0].sort().values)
            assert len(group.unique(dim=0)) == len(group)
            place += 1
    assert place == len(ways.members)


@pytest.mark.parametrize("points", [0, 1, 3, 4, 5])
def test_the_bound_is_the_sum_over_who_made_each_point(points):
    """A loop over every vote of every object, or none, for each point."""
    model = small(num_caps=2, votes=2)
    images = scene(points)
    with torch.no_grad():
        places = model.points(images)[0][0, 16 - points :]
        rates, on = model.shares.sigmoid(), model.prior.sigmoid()
        std = 0.01 + F.softplus(model.spread)
        votes = [*product(range(2), range(2))]
        whole = 0.0
        for made in product([None, *votes], repeat=points):
            taken = [x for x in made if x is not None]
            if len(set(taken)) < len(taken) or len(taken) < min(points, 4):
                continue
            chance = torch.tensor(NOWHERE).double().exp() ** (points - len(taken))
            for j in range(2):
                mine = [(p, x[1]) for p, x in enumerate(made) if x is not None and x[0] == j]
                shown = torch.stack([rates[j, v] if (v in dict(map(reversed, mine))) else
                                     1 - rates[j, v] for v in range(2)]).prod()  # fmt: skip
                if not mine:
                    chance *= 1 - on + on * shown
                    continue
                order = [v for _, v in mine]
                design = design_of(model.places[j, order]).flatten(0, 1)
                spread = std[j, order].repeat_interleave(2).square().diag()
                normal = MultivariateNormal(design[:, 0], design @ design.T + spread)
                seen = places[[p for p, _ in mine]].flatten()
                chance *= on * shown * normal.log_prob(seen).exp()
            whole += chance
        torch.testing.assert_close(model.bound(images).terms["points"][0], whole.log())


def test_poses_are_integrated():
    """The density of three points is its mean over poses of the prior."""
    model = small(num_caps=1, votes=3, pose_std=0.4)
    torch.manual_seed(1)
    with torch.no_grad():
        model.spread.fill_(-0.5)
        points = torch.rand(3, 2).double()
        law = model.law(3)
        shown = model.shares.sigmoid().log().sum()
        still = torch.tensor([1.0, 0, 0, 0]).double()
        poses = pose_of(still + 0.4 * torch.randn(400_000, 1, 4).double())
        std = (0.01 + F.softplus(model.spread))[..., None]
        each = Normal(placed(poses, model.places), std).log_prob(points).sum((1, 2, 3))
        mean = float(each.exp().mean())
        assert isclose(float((law.at(points.flatten()) - shown).exp()), mean, rel_tol=0.02)


def test_slopes_of_the_bound():
    model = small(num_caps=2, votes=3)
    images = torch.cat([scene(5), scene(3)])
    names = [name for name, _ in model.named_parameters()]

    def bound(*values):
        return torch.func.functional_call(
            Terms(model), {f"model.{n}": v for n, v in zip(names, values, strict=True)}, (images,)
        )

    values = [p.detach().clone().requires_grad_() for p in model.parameters()]
    assert torch.autograd.gradcheck(bound, values)


class Terms(torch.nn.Module):
    """The bound as what a module returns."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return self.model.bound(images).terms["points"]


def test_scenes_keep_their_order(scenes):
    model = small()
    images = scenes.train.batch(slice(0, 20)).images.double()
    with torch.no_grad():
        whole = model.bound(images).terms["points"]
        alone = torch.cat([model.bound(x[None]).terms["points"] for x in images])
    torch.testing.assert_close(whole, alone)


def test_true_patterns_are_found_where_they_are(scenes):
    model = torchcaps.create_model("constellation-covers").eval()
    with torch.no_grad():
        for number, pattern in enumerate(PATTERNS):
            corners = torch.tensor(pattern)
            model.places[number, : len(corners)] = 0.2 * corners
            model.shares[number] = torch.where(torch.arange(4) < len(corners), 5.0, -9.0)
        model.spread.fill_(-6.0)
    batch = scenes.train.batch(slice(0, 60))
    owners = model.owners(batch.images)
    right = float(matched(owners, batch.labels).sum() / (batch.labels >= 0).sum())
    assert right > 0.99
    assert torch.equal(owners >= 0, batch.labels >= 0)
    places, _ = model.points(batch.images)
    layer = model.encode(batch.images).layers[0]
    votes = placed(layer.poses.unflatten(2, (2, 3)), model.places)
    for b, j in product(range(60), range(3)):
        mine = places[b, owners[b] == j]
        assert bool(layer.activations[b, j]) == (len(mine) > 0)
        if len(mine):
            apart = torch.cdist(mine, votes[b, j, : len(PATTERNS[j])])
            assert len(mine) == len(PATTERNS[j]) and apart.amin(1).max() < 0.03
    found = model.representations(batch.images)
    assert found["t0"].shape == (60, 3) and found["t0+A0"].shape == (60, 21)


def test_it_learns_and_is_saved(scenes, tmp_path):
    torch.manual_seed(0)
    model = torchcaps.create_model("constellation-covers")
    images = scenes.train.batch(slice(0, 8)).images
    (-model.bound(images).terms["points"].mean()).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, key
    model.eval().save_pretrained(tmp_path / "model")
    again = torchcaps.load(tmp_path / "model").eval()
    assert torch.equal(again.owners(images), model.owners(images))


def test_what_cannot_be_summed_is_an_error(scenes):
    model = torchcaps.create_model("constellation-covers", num_caps=6)
    with pytest.raises(TorchcapsError, match="covers by 6 objects of 4 points"):
        model.bound(scenes.train.batch(slice(0, 20)).images)
    with pytest.raises(TorchcapsError, match="three channels"):
        torchcaps.create_model("constellation-covers", in_channels=1)
