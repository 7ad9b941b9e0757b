import pytest
import torch

from torchcaps.metrics.probes import KNN, SVM, KMeans, Linear, Logistic


def blobs(count=60):
    centres = torch.eye(3) * 4
    labels = torch.arange(count) % 3
    return centres[labels] + 0.3 * torch.randn(count, 3), labels


@pytest.mark.parametrize("probe", [KNN(5), Linear(), Logistic()], ids=["knn", "linear", "logistic"])
def test_probes_separate_blobs_but_not_noise(probe):
    features, labels = blobs()
    probe.fit(features[::2], labels[::2])
    assert probe.predict(features[1::2]).shape == (30,)
    assert probe.score(features[1::2], labels[1::2]) == 1
    noise = torch.randn(600, 3)
    tags = torch.randint(3, (600,))
    probe.fit(noise[::2], tags[::2])
    assert probe.score(noise[1::2], tags[1::2]) < 0.5


def test_logistic_regression_matches_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    torch.manual_seed(0)
    features, labels = torch.randn(200, 4), torch.randint(3, (200,))
    features[:, 0] += labels
    ours = Logistic().fit(features, labels)
    x = (features.double() - ours.mean) / ours.std
    theirs = LogisticRegression(C=1 / (2 * 200 * ours.ridge), tol=1e-10, max_iter=1000)
    theirs.fit(x.numpy(), labels.numpy())
    class_probabilities = ours._with_bias(features) @ ours.weight
    torch.testing.assert_close(
        class_probabilities.softmax(1),
        torch.from_numpy(theirs.predict_proba(x.numpy())),
        atol=1e-3,
        rtol=0,
    )


def test_ridge_regression_by_hand():
    """Two classes at -s and s about 10: after standardizing z = ±√3/2 (deviation of a sample), the
    weight of the first class is -√3 / (3 + 4 ridge), its bias 2 / (4 + 4 ridge).
    """
    features = 10 + 5 * torch.tensor([[-1.0], [-1.0], [1.0], [1.0]])
    labels = torch.tensor([0, 0, 1, 1])
    for ridge in (1.0, 0.25):
        probe = Linear(ridge).fit(features, labels)
        weight, bias = -(3**0.5) / (3 + 4 * ridge), 2 / (4 + 4 * ridge)
        expected = torch.tensor([[weight, -weight], [bias, bias]], dtype=torch.float64)
        torch.testing.assert_close(probe.weight, expected, atol=1e-5, rtol=0)
    assert probe.predict(torch.tensor([[9.9], [10.1], [0.0]])).tolist() == [0, 1, 0]


def test_nearest_neighbors_vote_by_similarity():
    """Cosine 1 for class 0; twice 0.9 for class 1: exp(1 / t) against 2 exp(0.9 / t)."""
    side = (1 - 0.9**2) ** 0.5
    known = torch.tensor([[2.0, 0.0], [0.9, side], [9.0, -10 * side], [-1.0, 0.0]])
    labels = torch.tensor([0, 1, 1, 2])
    asked = torch.tensor([[5.0, 0.0]])
    assert KNN(3, temperature=0.1).fit(known, labels).predict(asked).tolist() == [0]
    assert KNN(3, temperature=1.0).fit(known, labels).predict(asked).tolist() == [1]
    assert KNN(1, temperature=1.0).fit(known, labels).predict(asked).tolist() == [0]
    far = KNN(1).fit(known, labels).predict(torch.tensor([[-0.1, 0.02]]))
    assert far.tolist() == [2], "the angle counts, not the distance"


def test_each_class_names_one_cluster():
    """Labels 0x5, 1x1 in one place and 0x3, 1x2 in another: 5 + 2 of 11 are right, not 5 + 3."""
    features = torch.tensor([[0.0]] * 6 + [[9.0]] * 5)
    labels = torch.tensor([0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 1])
    probe = KMeans().fit(features, labels)
    assert probe.predict(torch.tensor([[0.5], [8.0]])).tolist() == [0, 1]
    assert probe.score(features, labels) == pytest.approx(7 / 11)


def test_clusters_in_any_order_have_the_names_of_their_classes():
    labels = torch.arange(35) % 7
    features = 10.0 * labels[:, None] + torch.arange(35)[:, None] % 3
    orders = []
    for seed in range(3):
        probe = KMeans(seed).fit(features, labels)
        assert probe.score(features, labels) == 1
        orders.append(probe.names)
    assert any((names[names] != range(7)).any() for names in orders), "no order tells"


@pytest.mark.parametrize(("held_out", "chosen"), [(1, 1e-3), (0, 10.0)])
def test_the_penalty_is_chosen_on_images_that_are_held_out(held_out, chosen):
    """Of 20 points a weak penalty learns that the side decides, a strong one that 0 is frequent.
    Rows 0 and 10 are held out; the side tells their class, or it is always 0.
    """
    side = torch.tensor([1.0, -1.0, -1.0, 1.0, -1.0] * 4)
    labels = (side > 0).long()
    side[[0, 10]], labels[[0, 10]] = 1.0, held_out
    rest = torch.arange(20) % 10 != 0
    assert (labels[rest] == 0).sum() > (labels[rest] == 1).sum()
    probe = Logistic(penalties=(1e-3, 10.0)).fit(side[:, None], labels)
    assert probe.ridge == chosen
    assert Logistic(penalties=(0.5,)).fit(side[:, None], labels).ridge == 0.5


def test_a_support_vector_machine_of_two_points():
    """Both points lie on the margin: decisions -1 and 1 there, 0 in the middle."""
    machine = SVM(c=100.0, gamma=0.5, jobs=1).fit(
        torch.tensor([[-1.0], [1.0]]), torch.tensor([0, 1])
    )
    weight = 1 / (1 - torch.tensor(-0.5 * 2**2).exp())
    asked = torch.tensor([-1.0, 0.0, 0.5, 1.0])
    kernel = lambda center: (-0.5 * (asked - center) ** 2).exp()  # noqa: E731
    expected = weight * (kernel(1.0) - kernel(-1.0))
    torch.testing.assert_close(
        machine.decide(asked[:, None])[:, 0].float(), expected, atol=2e-3, rtol=0
    )
    assert expected[[0, 1, 3]].tolist() == pytest.approx([-1, 0, 1], abs=1e-5)
    assert machine.predict(asked[:, None]).tolist() == [0, 0, 1, 1]
