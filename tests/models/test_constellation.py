"""Points, their patterns, and objects that explain them: by loops, and where the truth is known."""

from itertools import permutations

import pytest
import torch

import torchcaps
from torchcaps.analysis.measures import prepare
from torchcaps.analysis.segments import matched
from torchcaps.data.constellations import PATTERNS
from torchcaps.errors import TorchcapsError
from torchcaps.models.constellation import EVEN, NONE

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


@pytest.mark.parametrize("kind", ["generative", "scae"])
def test_the_likelihood_is_that_of_loops(kind, scenes):
    torch.manual_seed(0)
    name = "constellation" if kind == "generative" else "constellation-scae"
    model = torchcaps.create_model(name, **SIZES).double().eval()
    images = scenes.test.batch(slice(0, 3)).images.double()
    found = model.find(images)
    terms = model.bound(images, noise=False).terms
    places, there = model.points(images)
    std = found.std.expand_as(found.weights)
    for b in range(3):
        weights = [*found.weights[b].flatten().exp(), torch.tensor(NONE).double().exp()]
        total = sum(weights)
        whole = 0.0
        for p in range(16):
            if not there[b, p]:
                continue
            each = []
            for j in range(3):
                for v in range(4):
                    normal = torch.distributions.Normal(found.votes[b, j, v], std[b, j, v])
                    each.append(
                        found.weights[b, j, v].exp() * normal.log_prob(places[b, p]).sum().exp()
                    )
            each.append(weights[-1] * torch.tensor(EVEN).double().exp())
            whole += (sum(each) / total).log()
        torch.testing.assert_close(terms["points"][b], whole)


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
    found = model.find(batch.images)
    heights = torch.stack([model.solve(batch.images, found, n)[1] for n in (0, 2, 8)])
    assert (heights[2] > heights[0]).all()
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
        lines += taken.take(model)
    assert [x.get("features", "") for x in lines] == [
        "", "EM from the encoder", "EM from 2 random starts",
    ]  # fmt: skip
    assert all(0 < x["value"] <= 1 for x in lines)
