import pytest
import torch

from torchcaps.metrics.probes import KNN, Linear, Logistic


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
