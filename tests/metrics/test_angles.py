import pytest
import torch

from torchcaps.data import Split
from torchcaps.functional import affine_matrix, warp
from torchcaps.metrics.accuracy import accuracy
from torchcaps.metrics.angles import WEIGHTS, Angles, Predictions, class_and_odds, predict_rotated
from torchcaps.metrics.base import prepare
from torchcaps.models import Output, create_model


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    return create_model("capsnet-small").eval()


def test_confidence_and_reconstruction_error_choose_the_angle():
    predictions = Predictions(
        classes=torch.tensor([[3, 5], [1, 2], [7, 7]]),
        odds=torch.tensor([[2.0, 1.0], [0.5, 4.0], [1.0, 0.0]]),
        logits=torch.tensor([[1.0, 3.0], [5.0, 4.0], [1.0, 0.0]]),
        errors=torch.tensor([[9.0, 4.0], [2.0, 3.0], [5.0, 5.0]]),
        labels=torch.tensor([5, 2, 7]),
    )
    assert predictions.accuracy() == pytest.approx(
        2 / 3
    )  # the first is more confident in a wrong class
    assert predictions.accuracy(by_logit=True) == pytest.approx(2 / 3)  # and this by logit
    assert predictions.accuracy(1.0) == 1
    assert predictions.accuracy(100.0) == pytest.approx(
        2 / 3
    )  # the reconstruction error alone mistakes the second
    weight = predictions.best_weight()
    assert predictions.accuracy(weight) == 1 and 0.2 < weight < 3.5


def test_odds_of_a_softmax_do_not_round():
    logits = torch.tensor([[40.0, 0.0, -5.0], [1.0, 3.0, 2.0]])
    classes, odds = class_and_odds(Output(logits))
    assert classes.tolist() == [0, 1]
    share = logits.double().softmax(1).max(1).values
    torch.testing.assert_close(odds[1].double(), share[1].logit())
    assert odds[0] == pytest.approx(40, abs=0.01)
    scored = Output(logits, torch.tensor([[0.9, 0.1, 0.0]]))
    assert class_and_odds(scored)[1].item() == pytest.approx(2.197, abs=1e-3)


def test_one_angle_equals_plain_accuracy(model, digits):
    split = digits.test[torch.arange(40)]
    one = predict_rotated(model, split, 1)
    assert one.accuracy() == pytest.approx(accuracy(model, split)["accuracy"])
    assert one.errors is not None and one.errors.shape == (40, 1)


def test_quarter_rotations_permute_the_predictions(model, digits):
    """Quarter rotations lose no pixel, so the same predictions appear in another order."""
    split = digits.test[torch.arange(10)]
    ones, none = torch.ones(10, 2), torch.zeros(10)
    matrix = affine_matrix(torch.full((10,), 90.0), ones, none, torch.zeros(10, 2))
    images = (warp(split.images.float(), matrix, 28)).round().byte()
    straight = predict_rotated(model, split, 4)
    turned = predict_rotated(model, Split(images, split.labels), 4)
    torch.testing.assert_close(
        straight.odds.sort(1).values, turned.odds.sort(1).values, atol=1e-2, rtol=1e-3
    )
    assert not torch.allclose(straight.odds, turned.odds, atol=1e-2)


def test_classifiers_without_a_decoder_use_confidence_only(digits):
    model = create_model("convnet-avg-small").eval()
    (taken,) = prepare(["angles:digits,frames=2"], digits, "digits", None, 0)
    lines = {line["metric"]: line["value"] for line in taken.evaluate(model, "test")}
    assert list(lines) == ["angles_confidence", "angles_logit"]


def test_the_weight_of_reconstructions_is_chosen_on_validation_images(digits, monkeypatch):
    """On the validation images only a weight can tell; on the test images any weight is wrong."""
    odds, logits = torch.tensor([[2.0, 1.0]]), torch.tensor([[1.0, 2.0]])
    classes, errors = torch.tensor([[3, 5]]), torch.tensor([[4.0, 1.0]])
    answers = {
        id(digits.val): Predictions(classes, odds, logits, errors, torch.tensor([5])),
        id(digits.test): Predictions(classes, odds, logits, errors, torch.tensor([3])),
    }
    monkeypatch.setattr(
        "torchcaps.metrics.angles.predict_rotated", lambda _, split, frames: answers[id(split)]
    )
    metric, model = Angles(), create_model("capsnet-small")
    metric.learn(model, digits)
    assert metric.weight == answers[id(digits.val)].best_weight() > 1 / 3
    assert metric.score(model, digits, digits.test) == {
        "angles_confidence": 1.0, "angles_logit": 0.0, "angles_drawing": 0.0
    }  # fmt: skip


def test_candidate_weights_rise_from_none():
    assert WEIGHTS[0] == 0 and all(a < b for a, b in zip(WEIGHTS, WEIGHTS[1:], strict=False))
