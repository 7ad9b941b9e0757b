"""Presences as logits of relaxed Bernoulli variables (binary Concrete), in numerically stable form.

A presence is sigmoid(k). The random variable is the logit k, because the density of a presence is
infinite at 0 and 1. With a temperature tau and location g: k = (g + logistic noise) / tau.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def log_on(logits: Tensor) -> Tensor:
    """log sigmoid(k)"""
    return -F.softplus(-logits)


def log_off(logits: Tensor) -> Tensor:
    """log(1 - sigmoid(k))"""
    return -F.softplus(logits)


def concrete_log_prob(logits: Tensor, location: Tensor, tau: float = 1.0) -> Tensor:
    """Log density of a logit. logits, location [...] -> [...]"""
    difference = location - tau * logits
    return math.log(tau) + difference - 2 * F.softplus(difference)


def concrete_kl(location: Tensor, prior: Tensor) -> Tensor:
    """KL(q || p) at a shared temperature, on which it does not depend: d coth(d/2) - 2."""
    distance = (location - prior).abs()
    near = distance < 1e-2
    safe = torch.where(near, 1.0, distance)
    return torch.where(near, distance.square() / 6, safe / torch.tanh(safe / 2) - 2)


def logistic_noise(uniform: Tensor) -> Tensor:
    """Logistic noise from uniform samples in [0,1]."""
    clamped = uniform.clamp(1e-6, 1 - 1e-6)
    return clamped.log() - torch.log1p(-clamped)


def normal_log_prob(value: Tensor, mean: Tensor | float, std: Tensor | float) -> Tensor:
    """Log density of independent Normals, elementwise."""
    scale = std.log() if isinstance(std, Tensor) else math.log(std)
    return -0.5 * ((value - mean) / std).square() - scale - 0.5 * math.log(2 * math.pi)


def normal_kl(mean: Tensor, std: Tensor) -> Tensor:
    """KL(q || Norm(0, 1)), elementwise."""
    return 0.5 * (mean.square() + std.square() - 1) - std.log()
