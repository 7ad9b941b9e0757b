"""Learning-rate range test (Smith 2017): raise the rate at each step and watch the loss."""

import math
from typing import NamedTuple

from torchcaps.errors import TorchcapsError
from torchcaps.training.recipe import Recipe
from torchcaps.training.setup import set_up

LOWEST, HIGHEST = 1e-7, 10.0
STEPS = 100
SMOOTHING = 0.9
"""Decay of the running mean of the loss."""
DIVERGED = 4.0
"""The test ends when the smoothed loss is so many times its minimum."""


class RangeTest(NamedTuple):
    """Learning rates, the smoothed loss at each, and the rate where the loss falls fastest."""

    rates: list[float]
    losses: list[float]
    suggestion: float


def range_test(recipe: Recipe, *, steps: int = STEPS) -> RangeTest:
    """Train some steps with a rate that grows from 1e-7 to 10; writes nothing.

    The suggestion is the rate at the steepest descent of the smoothed loss over the log of the
    rate, as in Lightning's and fastai's finders.
    """
    _, context = set_up(recipe)
    if context.fabric.world_size > 1:
        raise TorchcapsError("The range test runs in one process: --hardware.devices 1.")
    context.task.train()
    rates: list[float] = []
    losses: list[float] = []
    mean = 0.0
    for step in range(steps):
        rate = LOWEST * (HIGHEST / LOWEST) ** (step / max(1, steps - 1))
        for group in context.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        context.optimizer.zero_grad(set_to_none=True)
        with context.fabric.autocast():
            loss = context.task(context.loader.batch(step))["loss"]
        value = float(loss.detach())
        mean = SMOOTHING * mean + (1 - SMOOTHING) * value
        smoothed = mean / (1 - SMOOTHING ** (step + 1))
        if not math.isfinite(value) or (losses and smoothed > DIVERGED * max(min(losses), 1e-12)):
            break
        rates.append(rate)
        losses.append(smoothed)
        context.fabric.backward(loss)
        context.optimizer.step()
    return RangeTest(rates, losses, suggested(rates, losses))


def suggested(rates: list[float], losses: list[float]) -> float:
    """The rate at the steepest descent, before the loss is at its minimum."""
    lowest = min(range(len(losses)), key=losses.__getitem__) if losses else 0
    if lowest < 2:
        raise TorchcapsError("The loss falls at no learning rate from 1e-7 to 10.")
    slopes = [losses[n + 1] - losses[n - 1] for n in range(1, lowest)]
    return rates[1 + min(range(len(slopes)), key=slopes.__getitem__)]
