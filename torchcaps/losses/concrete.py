"""Presences as logits of relaxed Bernoulli variables (binary Concrete), in forms that stay finite.

A presence is sigmoid(k); the logit k is what is drawn, since at the borders of a presence densities
are infinite. With a temperature tau and location g: k = (g + logistic noise) / tau.
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
    """The log density of a logit. logits, location [...] -> [...]"""
    apart = location - tau * logits
    return math.log(tau) + apart - 2 * F.softplus(apart)


def concrete_kl(location: Tensor, prior: Tensor) -> Tensor:
    """KL(q || p) of two that share a temperature, whatever it is: d coth(d/2) - 2."""
    apart = (location - prior).abs()
    near = apart < 1e-2
    safe = torch.where(near, 1.0, apart)
    return torch.where(near, apart.square() / 6, safe / torch.tanh(safe / 2) - 2)


def logistic_noise(uniform: Tensor) -> Tensor:
    """Draws from 0 to 1 as noise of a logit."""
    inside = uniform.clamp(1e-6, 1 - 1e-6)
    return inside.log() - torch.log1p(-inside)


def normal_log_prob(value: Tensor, mean: Tensor | float, std: Tensor | float) -> Tensor:
    """The log density of independent Normals, entry by entry."""
    scale = std.log() if isinstance(std, Tensor) else math.log(std)
    return -0.5 * ((value - mean) / std).square() - scale - 0.5 * math.log(2 * math.pi)


def normal_kl(mean: Tensor, std: Tensor) -> Tensor:
    """KL(q || Norm(0, 1)), entry by entry."""
    return 0.5 * (mean.square() + std.square() - 1) - std.log()
