import pytest
import torch

from torchcaps.probes import KNN, Linear


def blobs(count=60):
    centres = torch.eye(3) * 4
    labels = torch.arange(count) % 3
    return centres[labels] + 0.3 * torch.randn(count, 3), labels


@pytest.mark.parametrize("probe", [KNN(5), Linear()], ids=["knn", "linear"])
def test_they_tell_blobs_apart_and_not_noise(probe):
    features, labels = blobs()
    probe.fit(features[::2], labels[::2])
    assert probe.predict(features[1::2]).shape == (30,)
    assert probe.score(features[1::2], labels[1::2]) == 1
    noise = torch.randn(600, 3)
    tags = torch.randint(3, (600,))
    probe.fit(noise[::2], tags[::2])
    assert probe.score(noise[1::2], tags[1::2]) < 0.5
