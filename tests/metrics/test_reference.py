"""Reference accuracies and intervals, on cases worked out by hand."""

import json
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import torch

from torchcaps.data import Dataset, Split
from torchcaps.metrics.reference import (
    Baseline,
    Reference,
    advice,
    reference,
    wilson,
    with_intervals,
)


def test_wilson_intervals():
    """Of 10 images 8 are right: the interval solves (p - 0.8)^2 = z^2 p (1 - p) / 10."""
    z = 1.959964
    roots = np.roots([1 + z * z / 10, -(2 * 0.8 + z * z / 10), 0.64])
    assert wilson(0.8, 10) == pytest.approx(tuple(sorted(roots)), abs=1e-12)
    assert wilson(0.8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0.0, 4) == pytest.approx((0, 0.4899), abs=1e-4)
    assert wilson(1.0, 4) == pytest.approx((0.5101, 1), abs=1e-4)
    assert wilson(0.5, 100) == pytest.approx((0.5 - 0.0962, 0.5 + 0.0962), abs=1e-4)
    assert wilson(0.0, 0) == (0.0, 1.0)


def test_only_shares_have_an_interval():
    lines = [
        {"metric": "accuracy", "value": 0.5, "n": 100},
        {"metric": "loss", "value": 0.5, "n": 100},
        {"metric": "knn_accuracy", "value": 0.5},
    ]
    found = with_intervals(lines)
    assert found[0]["interval_95"] == list(wilson(0.5, 100)) and found[1:] == lines[1:]


def shades(*labels: int) -> Split:
    """Gray images of 20x20 pixels whose brightness is that of their class, 60 levels apart."""
    levels = 40 + 60 * torch.tensor(labels).clamp(min=0)[:, None, None, None]
    noise = torch.randint(0, 20, (len(labels), 1, 20, 20))
    return Split((levels + noise).byte(), torch.tensor(labels))


def test_majority_and_softmax_regression():
    train = shades(*[0, 1, 2] * 10)
    data = Dataset("shades", train, train, shades(2, 1, 2, 0, 2, -1), ("dark", "mid", "light"))
    found = reference(data, data.test, data.classes)
    assert found is not None and (found.images, found.majority_class) == (5, "light")
    assert found.majority_accuracy == 3 / 5 and found.softmax_accuracy == 1.0
    assert found.softmax_fitted_on == 30
    titles = ["majority class", "nearest class mean, 16x16 pixels",
              "softmax linear probe, 16x16 pixels", "MLP, 16x16 pixels"]  # fmt: skip
    assert [one.title for one in found.baselines] == titles
    assert [one.accuracy for one in found.baselines] == [3 / 5, 1.0, 1.0, 1.0]
    assert [one.fitted_on for one in found.baselines] == [0, 30, 30, 30]
    assert found.baselines[0].interval_95 == wilson(0.6, 5)
    assert found.lines()[1].split("  ", 1)[1].strip() == "1.0000 (95 % interval 0.5655 to 1.0000)"
    assert Reference.from_dict(json.loads(json.dumps(found.as_dict()))).best.name == titles[1][:18]
    alone = reference(None, data.test, data.classes)
    assert alone is not None and alone.softmax_accuracy is None
    assert [one.name for one in alone.baselines] == ["majority class"]
    wrong = replace(train, labels=(train.labels + 1) % 3)  # learns another order of the classes
    found = reference(replace(data, train=wrong), data.test, data.classes)
    assert found is not None and found.softmax_accuracy == 0.0


def test_the_verdict_says_who_wins():
    best = Baseline("MLP", "16x16 pixels", 0.5, wilson(0.5, 100), 30)
    known = Reference(100, "a", 0.2, baselines=(best, Baseline("x", "", 0.2, (0.1, 0.3), 0)))
    text = known.verdict("capsnet", 0.55)
    assert text == (
        "capsnet wins: 5.0 points above the best baseline (MLP, 16x16 pixels: 50.00 %); their 95 % "
        "intervals overlap."
    )
    assert known.verdict("capsnet", 0.3).startswith("capsnet loses: 20.0 points below the best")
    assert known.verdict("capsnet", 0.3).endswith("do not overlap.")
    assert known.verdict("capsnet", 0.5).startswith("capsnet is level with the best baseline")


class Frozen:
    """A model on a pretrained backbone: its maps have the class at one of four positions."""

    frozen = True

    def with_features(self, split: Split) -> Split:
        maps = torch.zeros(len(split), 3, 2, 2, dtype=torch.float16)
        maps[torch.arange(len(split)), split.labels, 0, 1] = 4
        return replace(split, images=maps)


def test_baselines_of_a_model_on_a_backbone_see_its_features():
    labels = torch.arange(60) % 3
    noise = Split(torch.randint(0, 256, (60, 1, 20, 20), dtype=torch.uint8), labels)
    data = Dataset("noise", noise[:40], noise[40:], noise[40:], ("a", "b", "c"))
    found = reference(data, data.test, data.classes, Frozen())  # pyright: ignore
    assert found is not None and found.softmax_accuracy is not None
    assert found.softmax_accuracy < 0.8  # still on pixels
    assert {one.on for one in found.baselines[1:]} == {"features of the backbone"}
    assert [one.accuracy for one in found.baselines[1:]] == [1.0] * 4


def test_softmax_regression_agrees_with_scikit_learn(digits):
    """The same penalty on the same standardized 14x14 means of 2x2 pixels, padded to 16x16."""
    from sklearn.linear_model import LogisticRegression

    def padded(split: Split) -> Split:
        return replace(split, images=torch.nn.functional.pad(split.images, (2, 2, 2, 2)))

    data = replace(digits, train=padded(digits.train[::10]), test=padded(digits.test))
    found = reference(data, data.test, data.classes)
    assert found is not None

    def vectors(split: Split) -> np.ndarray:
        means = split.images.double().numpy()[:, 0].reshape(-1, 16, 2, 16, 2).mean((2, 4))
        return means.reshape(len(means), -1) / 255

    x, y = vectors(data.train), data.train.labels.numpy()
    mean, std = x.mean(0), x.std(0, ddof=1) + 1e-6
    theirs = LogisticRegression(C=1 / (2 * len(x) * 1e-2), tol=1e-8, max_iter=2000)
    theirs.fit((x - mean) / std, y)
    score = theirs.score((vectors(data.test) - mean) / std, data.test.labels.numpy())
    assert found.softmax_accuracy == pytest.approx(score, abs=0.0041)  # two images in 500
    assert sqrt(score) > 0.8


def test_several_labels_and_no_labels_have_no_reference(digits):
    pairs = digits.test.labels[:, None].expand(-1, 2)
    assert reference(digits, replace(digits.test, labels=pairs), digits.classes) is None
    assert reference(digits, digits.test, ()) is None
    unlabeled = replace(digits.test, labels=torch.full_like(digits.test.labels, -1))
    assert reference(digits, unlabeled, digits.classes) is None


def test_photographs_get_the_strongest_convnet(digits):
    assert advice(digits, "capsnet") == ""

    def in_color(images: torch.Tensor) -> Dataset:
        split = Split(images, torch.zeros(len(images), dtype=torch.long))
        return Dataset("colors", split, split, split, ("a", "b"))

    gray = torch.randint(0, 256, (8, 1, 20, 20), dtype=torch.uint8).expand(-1, 3, -1, -1)
    assert advice(in_color(gray), "capsnet") == ""
    photos = in_color(torch.randint(0, 256, (8, 3, 20, 20), dtype=torch.uint8))
    assert "convnet-modern" in advice(photos, "capsnet")
    assert "vote-head" in advice(photos, "capsule-head") and advice(photos, "vote-head") == ""
    assert advice(photos, "convnet-modern") == "" and advice(replace(photos, classes=()), "x") == ""
