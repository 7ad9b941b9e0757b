from dataclasses import replace

import pytest
import torch

import torchcaps
from tests.conftest import TINY_CAPSNET
from torchcaps.data import Split
from torchcaps.errors import TorchcapsError
from torchcaps.metrics.accuracy import Counter, Mirrored, Training, confusion, exact, probabilities
from torchcaps.metrics.base import PreparedMetric, read_metric
from torchcaps.models import Output


def test_exact_match_needs_all_labels_and_no_others():
    labels = torch.tensor([[1, 2], [1, -1], [1, 2], [0, -1]])
    scores = torch.tensor([[0.1, 0.9, 0.9], [0.1, 0.9, 0.2], [0.1, 0.9, 0.4], [0.9, 0.8, 0.1]])
    assert exact(Output(scores, scores), labels).tolist() == [True, True, False, False]
    assert exact(Output(torch.logit(scores)), labels).tolist() == [True, True, False, False]
    counter = Counter(Split(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), labels))
    counter.add(Output(scores, scores), labels)
    assert counter.numbers() == {"accuracy": 1.0, "exact_match": 0.5}


def test_unbounded_scores_keep_their_order():
    scores = torch.tensor([[1.5, 4.0], [0.2, 0.6]])
    claimed = probabilities(Output(scores, scores))
    torch.testing.assert_close(claimed, torch.tensor([[0.375, 1.0], [0.2, 0.6]]))


def test_confusion_matrix():
    claimed = torch.eye(3)[[0, 1, 1, 2]]
    assert confusion(claimed, torch.tensor([0, 0, 1, 2])).tolist() == [
        [1, 1, 0],
        [0, 1, 0],
        [0, 0, 1],
    ]


class Sides(torch.nn.Module):
    """Two scores: the brightness of the left column, and half that of the right one plus 0.2."""

    def with_features(self, split):
        return split

    def encode(self, images):
        left, right = images[:, 0, :, 0].mean(1), images[:, 0, :, -1].mean(1)
        return Output(torch.stack([left, 0.5 * right + 0.2], 1))


def test_mirrored_accuracy_averages_two_predictions(digits):
    images = torch.zeros(3, 1, 2, 3, dtype=torch.uint8)
    images[0, ..., 0], images[1, ..., 2], images[2, ..., 0] = 255, 255, 26
    test = Split(images, torch.tensor([0, 1, 1]))
    assert (Sides().encode(images / 255).logits.argmax(-1) == test.labels).all()

    def mirrored(split):
        metric, _ = read_metric("mirrored")
        (line,) = PreparedMetric(metric, replace(digits, test=split), "digits").evaluate(Sides())
        return line["metric"], line["value"]

    # the second is the first one's mirror: the mean of what it says of both is the same, and 0
    found = mirrored(test)
    assert found == ("mirrored_accuracy", pytest.approx(2 / 3))
    more = Split(torch.cat([images, images]), torch.tensor([0, 1, 1, -1, -1, -1]))
    assert mirrored(more) == found
    with pytest.raises(TorchcapsError, match="label"):
        mirrored(more[torch.tensor([3, 4])])


def test_train_accuracy_uses_generated_training_images():
    data = torchcaps.data.load("multimnist:digits,copies=2")
    model = torchcaps.create_model("capsnet", image_size=36, **TINY_CAPSNET).eval()
    rows = torch.linspace(0, len(data.train) - 1, 40).round().long()
    batch = data.training(rows, rows)
    with torch.no_grad():
        best = model(batch.images).logits.topk(2).indices.sort(1).values
    expected = (best == batch.labels.sort(1).values).all(1).float().mean()
    found = Training(images=40).score(model, data, data.test)
    assert found == {"train_accuracy": pytest.approx(float(expected))}


def test_images_without_labels_do_not_count():
    """With two labels per image, a missing one counts as found, so the image must not count."""
    labels = torch.tensor([[1, 2], [0, -1], [-1, -1], [-1, -1]])
    scores = torch.tensor([[0.1, 0.9, 0.9], [0.1, 0.9, 0.8], [0.9, 0.9, 0.0], [0.0, 0.0, 0.0]])
    counter = Counter(Split(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), labels))
    counter.add(Output(scores, scores), labels)
    assert counter.numbers() == {"accuracy": 0.5, "exact_match": 0.5}
    single = Counter(Split(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), labels[:, 0]))
    single.add(Output(scores, scores), labels[:, 0])
    assert single.numbers() == {"accuracy": 0.5}


def test_a_mirrored_prediction_is_a_mean_not_the_surest():
    """0.5, 0.4, 0.1 and 0.05, 0.45, 0.5: the mean is largest at 1, no single value is."""
    both = torch.tensor([[0.5, 0.4, 0.1], [0.05, 0.45, 0.5]])

    class Halves(torch.nn.Module):
        def with_features(self, split):
            return split

        def encode(self, images):
            return Output(both.logit(), both[(images[:, 0, 0, 0] < 0.5).long()])

    images = torch.tensor([255, 0], dtype=torch.uint8).reshape(1, 1, 1, 2)
    for label, right in ((1, 1.0), (0, 0.0), (2, 0.0)):
        split = Split(images, torch.tensor([label]))
        assert Mirrored().score(Halves(), None, split) == {"mirrored_accuracy": right}
