"""Optimizers, the learning rate as a function of the step, and the running average of weights."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from torchcaps.errors import TorchcapsError, nearest
from torchcaps.training.recipe import OptimizerSpec, ScheduleSpec


def make_optimizer(task: nn.Module, spec: OptimizerSpec) -> Optimizer:
    """Each group says in `factor` how its rate stands to the schedule's."""
    learned = [(n, p) for n, p in task.named_parameters() if p.requires_grad]
    named = [(n.removeprefix("model."), p) for n, p in learned]
    fused = all(p.is_cuda for _, p in named) or None
    factors = _factors([n for n, _ in named], spec.rates)
    groups: dict[tuple[float, bool], list[Tensor]] = {}
    for name, parameter in named:
        decays = spec.decay_all or (parameter.ndim > 1 and not name.endswith("bias"))
        groups.setdefault((factors[name], decays), []).append(parameter)
    param_groups: list[dict[str, Any]] = [
        {"params": params, "factor": factor, **({} if decays else {"weight_decay": 0.0})}
        for (factor, decays), params in sorted(groups.items(), key=lambda g: (g[0][0], not g[0][1]))
    ]
    common: dict[str, Any] = {"lr": spec.lr, "weight_decay": spec.weight_decay}
    if spec.kind == "sgd":
        return SGD(
            param_groups, momentum=spec.momentum, nesterov=spec.nesterov, fused=fused, **common
        )
    if spec.kind == "rmsprop":
        alpha = spec.beta or 0.99
        return RMSprop(param_groups, momentum=spec.momentum, alpha=alpha, eps=spec.eps, **common)
    kind = AdamW if spec.kind == "adamw" else Adam
    betas = (spec.momentum, spec.beta or 0.999)
    return kind(param_groups, betas=betas, eps=spec.eps, fused=fused, **common)


def _factors(names: list[str], rates: tuple[str, ...]) -> dict[str, float]:
    """The factor of each parameter's rate: the last of the rates whose name it begins with."""
    factors = dict.fromkeys(names, 1.0)
    for text in rates:
        prefix, _, factor = text.partition("=")
        inside = [n for n in names if f"{n}.".startswith(f"{prefix}.")]
        try:
            value = float(factor)
        except ValueError:
            raise TorchcapsError(f"optimizer.rates: {text!r} is not NAME=FACTOR.") from None
        if not inside:
            parts = sorted({n.split(".")[0] for n in names})
            raise TorchcapsError(
                f"optimizer.rates: no parameter begins with {prefix!r}. {nearest(prefix, parts)}"
            )
        factors |= dict.fromkeys(inside, value)
    return factors


def learning_rate(spec: ScheduleSpec, full: float, step: int, total: int) -> float:
    """A pure function of the step, so that there is nothing to save."""
    warm = spec.warmup * total
    if step < warm:
        return full * (step + 1) / (warm + 1)
    if spec.kind == "constant":
        return full
    if spec.kind == "exponential":
        return full * max(spec.final, spec.gamma ** (step / spec.period))
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
    """Parameters, and the running statistics of BatchNorm; no other state of a model."""
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            statistics = {"running_mean": module.running_mean, "running_var": module.running_var}
            tensors |= {
                f"{name}.{n}".lstrip("."): t for n, t in statistics.items() if t is not None
            }
    return tensors
