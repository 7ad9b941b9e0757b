import math

import pytest
import torch
from torch import nn

from torchcaps.errors import TorchcapsError
from torchcaps.training.optim import Average, learning_rate, make_optimizer
from torchcaps.training.recipe import OptimizerSpec, ScheduleSpec


def rates(total=100, **spec):
    return [learning_rate(ScheduleSpec(**spec), 2.0, s, total) for s in range(total)]


def test_schedules():
    assert set(rates(kind="constant")) == {2.0}
    step = rates(kind="step", milestones=(0.5, 0.75), gamma=0.1)
    assert step[49] == 2 and step[50] == pytest.approx(0.2) and step[75] == pytest.approx(0.02)
    cosine = rates(kind="cosine")
    assert cosine[0] == 2 and cosine[50] == pytest.approx(1) and cosine[-1] < 0.01
    warm = rates(kind="cosine", warmup=0.1)
    assert warm[0] < 0.2 and max(warm) == pytest.approx(2, rel=0.01) and warm[5] > warm[2]
    cycle = rates(kind="one_cycle")
    assert cycle[0] == pytest.approx(2 / 25) and cycle[30] == pytest.approx(2) and cycle[-1] < 0.01
    assert rates(kind="cosine", final=0.5)[-1] == pytest.approx(1, rel=0.01)
    falling = rates(kind="exponential", gamma=0.5, period=10, final=0.01)
    assert (
        falling[0] == 2 and falling[10] == pytest.approx(1) and falling[5] == pytest.approx(2**0.5)
    )
    assert falling[-1] == pytest.approx(0.02)


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd", "rmsprop"])
def test_optimizers_descend(kind):
    model = nn.Linear(3, 1)
    rate = 0.01 if kind == "rmsprop" else 0.05
    optimizer = make_optimizer(model, OptimizerSpec(kind=kind, lr=rate))
    x = torch.randn(50, 3)
    losses = []
    for _ in range(60):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.2 * losses[0]


def test_average_follows_its_formula_and_swaps_back():
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    average = Average(model, 0.9)
    expected = 1.0
    for value in (2.0, 3.0, 5.0):
        nn.init.constant_(model.weight, value)
        average.update(1000)
        expected = 0.9 * expected + 0.1 * value
    with average.swapped():
        assert math.isclose(float(model.weight.detach()), expected, rel_tol=1e-6)
    assert float(model.weight.detach()) == 5.0


def test_a_young_average_follows_the_weights():
    """Else a run of few steps ends with an average that is mostly its random beginning."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 0.0)
    average = Average(model, 0.999)
    nn.init.constant_(model.weight, 1.0)
    for step in range(100):
        average.update(step)
    assert float(average.weights["weight"]) > 0.999


def test_average_takes_the_statistics_of_norms_with_the_weights():
    """Averaged weights under the latest statistics class at chance while the rate is high."""
    model = nn.BatchNorm1d(1)
    average = Average(model, 0.5)
    model(torch.full((4, 1), 10.0))  # running mean: 0.9 x 0 + 0.1 x 10
    average.update(1000)
    assert model.running_mean is not None
    with average.swapped():
        assert math.isclose(float(model.running_mean), 0.5, rel_tol=1e-6)
    assert math.isclose(float(model.running_mean), 1.0, rel_tol=1e-6)


def test_an_average_leaves_other_state_alone():
    """A boost that a task counts is no weight: its average would be no boost."""
    model = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    model.register_buffer("boost", torch.ones(1))
    average = Average(model, 0.5)
    assert set(average.weights) == {
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var",
    }  # fmt: skip
    model.boost.fill_(3.0)
    average.update(1000)
    with average.swapped():
        assert float(model.boost) == 3.0


def test_groups_of_parameters_have_their_own_rates():
    model = nn.Module()
    model.model = nn.ModuleDict({"stem": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
    spec = OptimizerSpec(
        kind="sgd", lr=0.1, weight_decay=0.5, rates=("head=2", "head.bias=0.5"), decay_all=False
    )
    groups = make_optimizer(model, spec).param_groups
    found = {(g["factor"], g["weight_decay"]): len(g["params"]) for g in groups}
    assert found == {(1.0, 0.5): 1, (1.0, 0.0): 1, (2.0, 0.5): 1, (0.5, 0.0): 1}
    for wrong, words in (("heads=2", "Did you mean 'head'"), ("head=fast", "not NAME=FACTOR")):
        with pytest.raises(TorchcapsError, match=words):
            make_optimizer(model, OptimizerSpec(rates=(wrong,)))


def test_biases_and_gains_can_be_left_undecayed():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.LayerNorm(2))
    model.route_bias = torch.nn.Parameter(torch.ones(2, 3))  # a bias, for all its axes
    spec = OptimizerSpec(kind="sgd", lr=0.1, weight_decay=0.5, momentum=0.0, decay_all=False)
    optimizer = make_optimizer(model, spec)
    before = [p.detach().clone() for p in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for old, (name, new) in zip(before, model.named_parameters(), strict=True):
        torch.testing.assert_close(new.detach(), old * (0.95 if name == "0.weight" else 1))
