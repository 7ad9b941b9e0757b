"""Optimisers, the learning rate as a function of the step, and the running average of weights."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from torchcaps.train.recipe import OptimiserSpec, ScheduleSpec


def make_optimiser(model: nn.Module, spec: OptimiserSpec) -> Optimizer:
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    fused = all(p.is_cuda for _, p in named) or None
    groups: list[dict[str, Any]] = [{"params": [p for _, p in named]}]
    if not spec.decay_all:
        weights = {n for n, p in named if p.ndim > 1 and not n.endswith("bias")}
        groups = [
            {"params": [p for n, p in named if n in weights]},
            {"params": [p for n, p in named if n not in weights], "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]
    decay = spec.weight_decay
    if spec.kind == "sgd":
        rate = {"lr": spec.lr, "momentum": spec.momentum, "nesterov": spec.nesterov}
        return SGD(groups, **rate, weight_decay=decay, fused=fused)
    kind = AdamW if spec.kind == "adamw" else Adam
    return kind(groups, spec.lr, (spec.momentum, 0.999), weight_decay=decay, fused=fused)


def learning_rate(spec: ScheduleSpec, full: float, step: int, total: int) -> float:
    """A pure function of the step, so that there is nothing to save."""
    warm = spec.warmup * total
    if step < warm:
        return full * (step + 1) / (warm + 1)
    if spec.kind == "constant":
        return full
    if spec.kind == "step":
        return full * spec.gamma ** sum(step >= m * total for m in spec.milestones)
    if spec.kind == "cosine":
        part = (step - warm) / max(1.0, total - warm)
        return full * (spec.final + (1 - spec.final) * (1 + math.cos(math.pi * part)) / 2)
    part = step / max(1, total)  # one_cycle: up for three tenths of the run from a 25th, then down
    if part < 0.3:
        return full * (1 / 25 + (1 - 1 / 25) * (1 - math.cos(math.pi * part / 0.3)) / 2)
    down = (part - 0.3) / 0.7
    return full * (spec.final + (1 - spec.final) * (1 + math.cos(math.pi * down)) / 2)


class Average:
    """Exponential moving average of weights and of BatchNorm's statistics, swapped in to evaluate.

    Statistics of the latest weights do not fit the averaged ones while the rate is high.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.own = averaged(model)  # the tensors themselves: training changes them in place
        self.weights = {name: tensor.detach().clone() for name, tensor in self.own.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """step: how many were taken; the first ones forget their beginning faster."""
        decay = min(self.decay, (1 + step) / (10 + step))
        kept, now = list(self.weights.values()), list(self.own.values())
        torch._foreach_lerp_(kept, now, 1 - decay)  # pyright: ignore

    @contextmanager
    @torch.no_grad()
    def swapped(self) -> Iterator[None]:
        before = {name: tensor.detach().clone() for name, tensor in self.own.items()}
        self._set(self.weights)
        try:
            yield
        finally:
            self._set(before)

    def _set(self, values: dict[str, Tensor]) -> None:
        for name, tensor in self.own.items():
            tensor.copy_(values[name])


def averaged(model: nn.Module) -> dict[str, Tensor]:
    """Parameters, and the buffers that are statistics: of floating point and saved."""
    kept = model.state_dict(keep_vars=True)
    return {n: t for n, t in kept.items() if t.is_floating_point()}
