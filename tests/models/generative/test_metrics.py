import math
from dataclasses import replace

import pytest
import torch

from torchcaps.data.dataset import joined
from torchcaps.metrics.base import prepare
from torchcaps.models import create_model
from torchcaps.models.generative.metrics import information
from torchcaps.models.generative.task import Elbo, ElboTask


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


def test_the_task_counts_presences_on_every_image_as_the_metric_does(digits):
    """It counted the first 2,000, and its line in the results said n=10,000."""
    few = digits.test[::10]
    long = joined(few, few)
    for _ in range(5):
        long = joined(long, long)  # 3,200 images
    turned = replace(long, images=long.images.flip(0).transpose(-1, -2).contiguous())
    model = create_model("generative-small").eval()
    (metric,) = prepare(["presences"], replace(digits, test=turned), "digits", None, 0)
    task = ElboTask(model, Elbo()).evaluate(turned)
    lines = metric.evaluate(model, "test")
    assert {x["metric"]: x["value"] for x in lines}.items() <= task.items()
    assert len(turned) > 2000 and lines[0]["n"] == len(turned)


def test_majority_and_information_by_hand():
    """Object 0 has labels 0, 0, 1, object 1 labels 1, 1, 0: four of six are of the majority."""
    objects, labels = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 0, 1, 1, 1, 0])
    majority, nats = information(objects, labels)
    assert majority == pytest.approx(4 / 6)
    assert nats == pytest.approx(2 / 3 * math.log(4 / 3) + 1 / 3 * math.log(2 / 3))
    one = information(torch.zeros(4).long(), torch.tensor([2, 2, 2, 0]))
    assert one == (0.75, pytest.approx(0.0))
    assert information(torch.tensor([0, 3]), torch.tensor([1, 0])) == (
        1.0, pytest.approx(math.log(2))
    )  # fmt: skip
