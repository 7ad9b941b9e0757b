import math

import pytest
import torch

from torchcaps.losses import (
    binary_cross_entropy,
    cross_entropy,
    margin_loss,
    multi_hot,
    reconstruction_loss,
    spread_loss,
)


def test_multi_hot_of_one_label_several_and_none():
    assert multi_hot(torch.tensor([2, -1]), 3).tolist() == [[0, 0, 1], [0, 0, 0]]
    assert multi_hot(torch.tensor([[0, 2], [1, -1]]), 3).tolist() == [[1, 0, 1], [0, 1, 0]]


def test_margin_loss_against_the_formula():
    lengths = torch.tensor([[0.95, 0.3, 0.05], [0.2, 0.5, 0.0]])
    first = max(0, 0.9 - 0.95) ** 2 + 0.5 * (max(0, 0.3 - 0.1) ** 2)
    second = (0.9 - 0.5) ** 2 + 0.5 * (0.2 - 0.1) ** 2
    loss = margin_loss(lengths, torch.tensor([0, 1]))
    assert float(loss) == pytest.approx((first + second) / 2)


def test_cross_entropies_against_the_formula():
    scores = torch.tensor([[1.0, -2.0, 0.5]])
    total = sum(math.exp(x) for x in (1.0, -2.0, 0.5))
    one = -math.log(math.exp(-2.0) / total)
    assert float(cross_entropy(scores, torch.tensor([1]))) == pytest.approx(one)
    other = -math.log(math.exp(1.0) / total)
    two = float(cross_entropy(scores, torch.tensor([[0, 1]])))
    assert two == pytest.approx((one + other) / 2)
    sigmoid = [1 / (1 + math.exp(-x)) for x in (1.0, -2.0, 0.5)]
    expected = -math.log(1 - sigmoid[0]) - math.log(sigmoid[1]) - math.log(1 - sigmoid[2])
    labels = torch.tensor([1])
    by_logits = binary_cross_entropy(scores, labels, probabilities=False)
    by_probabilities = binary_cross_entropy(scores.sigmoid(), labels, probabilities=True)
    assert float(by_logits) == pytest.approx(expected, rel=1e-5)
    assert float(by_probabilities) == pytest.approx(expected, rel=1e-5)


def test_reconstruction_sums_pixels_and_leaves_absent_objects_out():
    drawn, target = torch.zeros(2, 1, 3, 3), torch.ones(2, 1, 3, 3)
    assert float(reconstruction_loss(drawn, target)) == 9
    two = torch.zeros(2, 2, 1, 3, 3), torch.ones(2, 2, 1, 3, 3)
    present = torch.tensor([[True, True], [True, False]])
    assert float(reconstruction_loss(*two, present)) == (9 + 9 + 9) / 2


def test_unsquashed_lengths_above_one_are_still_pushed_down():
    lengths = torch.full((1, 3), 2.0, requires_grad=True)
    binary_cross_entropy(lengths, torch.tensor([0]), probabilities=True).backward()
    assert lengths.grad is not None and (lengths.grad[0, 1:] > 0).all()


def test_spread_loss_against_the_formula():
    scores = torch.tensor([[0.7, 0.2, 0.1], [0.3, 0.5, 0.0]])
    first = (0.9 - 0.5) ** 2 + (0.9 - 0.6) ** 2
    second = (0.9 + 0.2) ** 2 + (0.9 - 0.3) ** 2
    loss = spread_loss(scores, torch.tensor([0, 0]))
    assert float(loss) == pytest.approx((first + second) / 2)
    assert float(spread_loss(torch.tensor([[0.95, 0.0]]), torch.tensor([0]))) == 0


def test_smoothing_gives_every_class_a_share():
    logits, labels = torch.randn(5, 4), torch.tensor([0, 1, 2, 3, 1])
    target = 0.9 * torch.nn.functional.one_hot(labels, 4) + 0.1 / 4
    expected = -(target * logits.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(cross_entropy(logits, labels, 0.1), expected)


def test_a_pasted_label_counts_by_area():
    logits, labels = torch.randn(3, 4), torch.tensor([0, 1, 2])
    pasted, kept = torch.tensor([3, 1, 0]), torch.tensor([0.25, 0.5, 1.0])
    each = torch.nn.functional.cross_entropy
    expected = torch.stack([
        k * each(row[None], own[None]) + (1 - k) * each(row[None], other[None])
        for row, own, other, k in zip(logits, labels, pasted, kept, strict=True)
    ]).mean()  # fmt: skip
    torch.testing.assert_close(cross_entropy(logits, labels, 0.0, pasted, kept), expected)


def test_image_without_a_label_adds_no_loss():
    logits = torch.randn(2, 4)
    assert float(cross_entropy(logits, torch.tensor([-1, -1]), 0.1)) == 0
    half = cross_entropy(logits, torch.tensor([2, -1]), 0.1)
    torch.testing.assert_close(half, cross_entropy(logits[:1], torch.tensor([2]), 0.1) / 2)
