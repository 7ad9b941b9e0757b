import pytest
import torch

from torchcaps.metrics.base import prepare
from torchcaps.models import create_model


def test_the_bound_is_the_mean_of_draws_and_the_same_every_time(digits):
    torch.manual_seed(0)
    model = create_model("generative-small", posterior="full").eval()
    split = digits.test[torch.arange(7)]
    small = type(digits)(digits.name, digits.train, digits.val, split, digits.classes)
    numbers = []
    for draws in (1, 1, 3):
        (taken,) = prepare([f"bound,draws={draws}"], small, "digits", None, 0)
        (line,) = taken.evaluate(model, "test")
        numbers.append(line["value"])
    assert numbers[0] == numbers[1] != numbers[2]
    torch.manual_seed(0)
    with torch.no_grad():
        each = [model.bound(split.batch(slice(0, 7)).images).terms.values() for _ in range(3)]
    sums = [float(sum(t.sum() for t in terms)) / 7 for terms in each]
    assert numbers[0] == pytest.approx(sums[0], rel=1e-5)
    assert numbers[2] == pytest.approx(sum(sums) / 3, rel=1e-5)
