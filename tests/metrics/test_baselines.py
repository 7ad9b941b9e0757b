"""Simple classifiers: worked by hand, beside scikit-learn, and the same twice."""

import numpy as np
import pytest
import torch

from torchcaps.metrics.baselines import (
    BASELINES,
    MLP,
    VOTE,
    ClassMeans,
    Inputs,
    Pooled,
    Vote,
    small,
)


def blobs(count=300, classes=4, seed=0):
    """Vectors around class means that are apart by about their deviation. -> [N,5], [N]"""
    draw = torch.Generator().manual_seed(seed)
    means = 2 * torch.randn(classes, 5, generator=torch.Generator().manual_seed(7))
    labels = torch.arange(count) % classes
    return means[labels] + torch.randn(count, 5, generator=draw), labels


def test_nearest_class_mean_agrees_with_scikit_learn():
    from sklearn.neighbors import NearestCentroid
    from sklearn.preprocessing import StandardScaler

    (x, y), (test, _) = blobs(), blobs(seed=1)
    scaler = StandardScaler().fit(x.numpy())
    theirs = NearestCentroid().fit(scaler.transform(x.numpy()), y.numpy())
    got = ClassMeans().fit(x, y).predict(test)
    assert np.array_equal(got.numpy(), theirs.predict(scaler.transform(test.numpy())))


def test_a_class_without_training_images_is_never_predicted():
    x = torch.tensor([[0.0, 1.0], [0.0, 1.1], [5.0, 1.0], [5.0, 1.2]])
    learned = ClassMeans().fit(x, torch.tensor([0, 0, 2, 2]))
    assert learned.predict(torch.tensor([[0.3, 1.0], [2.6, 1.1], [9.0, 1.0]])).tolist() == [0, 2, 2]


def test_an_mlp_learns_what_no_linear_map_can():
    draw = torch.Generator().manual_seed(0)
    x = torch.rand(400, 2, generator=draw) * 2 - 1
    labels = (x.prod(1) > 0).long()  # the quadrants of a plane: exclusive or
    before = torch.random.get_rng_state()
    got = MLP().fit(x[:300], labels[:300]).predict(x[300:])
    assert float((got == labels[300:]).float().mean()) > 0.9
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(got, MLP().fit(x[:300], labels[:300]).predict(x[300:]))
    maps = x[..., None, None]
    linear = BASELINES["softmax linear probe"]().fit(maps[:300], labels[:300])
    assert float((linear.predict(maps[300:]) == labels[300:]).float().mean()) < 0.7


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_learns_few_images(name):
    (x, y), (test, labels) = blobs(24), blobs(seed=1)
    x, test = x.unflatten(1, (5, 1, 1)), test.unflatten(1, (5, 1, 1))
    got = BASELINES[name]().fit(x, y).predict(test)
    assert float((got == labels).float().mean()) > 0.75


def test_a_vote_of_one_position_is_an_mlp():
    (x, y), (test, labels) = blobs(), blobs(seed=1)
    maps, others = x[..., None, None], test[..., None, None]
    assert torch.equal(Vote().fit(maps, y).predict(others), MLP().fit(x, y).predict(test))
    assert VOTE not in dict(Inputs("pixels", maps, y, others).accuracies(labels))


def test_positions_vote_where_their_mean_says_nothing():
    """The class is the side of a plane's diagonal at every position; the mean of positions is 0."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 2
    x = torch.rand(400, 2, 8, generator=draw)
    x[:, 1] = torch.where(labels[:, None] == 1, x[:, 0], -x[:, 0])  # on a diagonal, or the other
    x = torch.cat([x, -x], 2).unflatten(2, (4, 4))  # its mirror image takes the mean away
    maps, test = x[:300], x[300:]
    found = dict(Inputs("maps", maps, labels[:300], test).accuracies(labels[300:]))
    assert found[VOTE] > 0.95 and found["MLP"] < 0.7


def test_maps_are_averaged_over_positions():
    x, y = blobs()
    maps = x[..., None, None] + torch.tensor([[-1.0, 1.0], [2.0, -2.0]])
    got, expected = Pooled(ClassMeans()).fit(maps, y).predict(maps), ClassMeans().fit(x, y)
    assert torch.equal(got, expected.predict(x))


def test_small_images_are_means_of_areas():
    image = torch.arange(32.0 * 32).view(1, 1, 32, 32)
    assert small(image).shape == (1, 256, 1, 1)
    assert small(image)[0, 17, 0, 0] == image[0, 0, 2:4, 2:4].mean()
