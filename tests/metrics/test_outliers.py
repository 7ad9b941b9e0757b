from dataclasses import replace

import pytest
import torch
from torch import nn

import torchcaps
from torchcaps.data import Split
from torchcaps.errors import TorchcapsError
from torchcaps.metrics import outliers
from torchcaps.metrics.outliers import outlier_auroc, outlier_scores
from torchcaps.models import Output


class Copies(nn.Module):
    """Reconstruct dark images well and bright images badly."""

    provides = frozenset({"logits", "decode"})

    def with_features(self, split):
        return split

    def encode(self, images):
        logits = torch.stack([images.mean((1, 2, 3)), 1 - images.mean((1, 2, 3))], 1)
        return Output(10 * logits)

    def forward(self, images):
        return replace(self.encode(images), reconstruction=images.clamp(max=0.5))


def test_badly_reconstructed_images_are_outliers():
    dark = Split(torch.randint(0, 128, (20, 1, 4, 4)).to(torch.uint8), torch.zeros(20).long())
    bright = Split(torch.randint(160, 256, (20, 1, 4, 4)).to(torch.uint8), torch.zeros(20).long())
    assert outlier_auroc(Copies(), dark, bright) == 1
    assert outlier_auroc(Copies(), bright, dark) == 0
    assert outlier_scores(Copies(), bright, "confidence").shape == (20,)
    with pytest.raises(TorchcapsError, match="no decoder"):
        outlier_scores(
            torchcaps.create_model("convnet-modern", image_size=4, channels=(2,) * 7), dark
        )


def test_ties_count_half():
    images = torch.zeros(6, 1, 4, 4, dtype=torch.uint8)
    split = Split(images, torch.zeros(6).long())
    assert outlier_auroc(Copies(), split, split) == 0.5


def test_an_unsure_image_is_an_outlier():
    class Sure(torch.nn.Module):
        temperature = None

        def encode(self, images):
            sure = images.flatten(1)[:, :1]
            return Output(torch.cat([sure, (1 - sure) / 2, (1 - sure) / 2], 1).log())

    split = Split(torch.tensor([51, 128, 230], dtype=torch.uint8).view(3, 1, 1, 1), torch.zeros(3))
    scores = outlier_scores(Sure(), split, "confidence")
    assert scores.tolist() == pytest.approx([0.6, 127 / 255, 25 / 255], abs=1e-3)


@pytest.mark.parametrize("name, other", [("digits", "fashion-mnist"), ("fashion-mnist", "mnist")])
def test_outliers_are_of_the_other_data_set(name, other, monkeypatch, digits):
    loaded = []

    def load(name, *_, **__):
        loaded.append(name)
        raise TorchcapsError("not here")

    monkeypatch.setattr(outliers, "load_data", load)
    metric = outliers.Outliers()
    with pytest.raises(TorchcapsError):
        metric.score(Copies(), replace(digits, name=name), digits.test)
    assert loaded == [other]


def test_unseen_classes_are_the_outliers(monkeypatch, digits):
    """Sure of bright images, so gray ones of unseen classes are outliers."""
    gray = Split(torch.full((10, 1, 4, 4), 128, dtype=torch.uint8), torch.zeros(10).long())
    bright = Split(torch.full((10, 1, 4, 4), 250, dtype=torch.uint8), torch.zeros(10).long())
    loaded = []

    def load(name, root, *, seed):
        loaded.append(name)
        return replace(digits, test=gray)

    class Brightness(torch.nn.Module):
        temperature = None

        def encode(self, images):
            sure = images.flatten(1).mean(1, keepdim=True)
            return Output(torch.cat([sure, 1 - sure], 1).log())

    monkeypatch.setattr(outliers, "load_data", load)
    metric = outliers.Unseen()
    metric.context.label = "fruits-views:half,size=32,classes=seen"
    metric.check(Brightness(), digits)
    assert metric.score(Brightness(), digits, bright) == {"unseen_confidence": 1.0}
    assert loaded == ["fruits-views:half,size=32,classes=unseen"]
    metric.context.label = "digits"
    with pytest.raises(TorchcapsError, match="classes=seen"):
        metric.check(Brightness(), digits)
