"""The kernel matrix of all points, and the machines of all pairs of classes side by side."""

from typing import Any

import torch
from torch import Tensor

from torchcaps.kernels import smo as kernels
from torchcaps.kernels.shape import cdiv, pow2

BLOCK = 4096
MOST = 10_000_000
"""Steps after which a pair is left as it is."""


def needed(points: int) -> int:
    """Bytes that a fit takes: the matrix, and its rows in float64 as they are made."""
    return 4 * points**2 + 3 * 8 * min(points, BLOCK) * points


def rbf(x: Tensor, gamma: float) -> Tensor:
    """exp(-gamma |x_i - x_j|^2), float32. x [N,D] float64 -> [N,N]"""
    size = x.square().sum(1)
    gram = torch.empty(len(x), len(x), dtype=torch.float32, device=x.device)
    for start in range(0, len(x), BLOCK):
        part = slice(start, start + BLOCK)
        apart = torch.addmm(size[part, None] + size, x[part], x.T, alpha=-2)
        gram[part] = apart.clamp_(min=0).mul_(-gamma).exp_()
    return gram


def fit_pairs(
    x: Tensor, labels: Tensor, pairs: Tensor, c: float, gamma: float, tolerance: float = 1e-3
) -> tuple[Tensor, Tensor]:
    """The dual solutions of pairs [P,2] of classes; a positive decision is the second.

    x [N,D] float64, labels [N] -> coefficients [N,P], intercepts [P], both float64
    """
    order = labels.argsort(stable=True)
    ordered = labels[order].contiguous()
    begin = torch.searchsorted(ordered, pairs)
    count = torch.searchsorted(ordered, pairs, right=True) - begin
    sizes = count.sum(1)
    base = sizes.cumsum(0) - sizes
    ranges = torch.stack([begin[:, 0], count[:, 0], begin[:, 1], count[:, 1], base], 1)
    number = torch.arange(len(pairs), device=x.device).repeat_interleave(sizes)
    place = torch.arange(int(sizes.sum()), device=x.device) - base[number]
    second = place >= count[number, 0]
    sign = torch.where(second, 1.0, -1.0).to(torch.float64)
    alpha, slope = torch.zeros_like(sign), sign.clone()
    steps = torch.zeros(len(pairs), dtype=torch.int32, device=x.device)
    block = min(BLOCK, pow2(int(sizes.max())))
    options: dict[str, Any] = {"CHUNKS": cdiv(int(sizes.max()), block), "BLOCK": block}
    options |= {"num_warps": 16, "num_stages": 1}
    held = (rbf(x[order], gamma), ranges.int(), alpha, slope, steps)
    with torch.cuda.device_of(x):
        kernels.smo[(len(pairs),)](*held, len(x), c, tolerance, MOST, **options)
    row = place + torch.where(second, begin[number, 1] - count[number, 0], begin[number, 0])
    coefficients = x.new_zeros(len(x), len(pairs))
    coefficients[order[row], number] = alpha * sign
    return coefficients, _intercepts(alpha, slope, second, number, c, len(pairs))


def _intercepts(
    alpha: Tensor, slope: Tensor, second: Tensor, number: Tensor, c: float, pairs: int
) -> Tensor:
    """The mean slope of points between the bounds; where there is none, the middle of those that
    may only rise and those that may only fall.
    """
    free = ((alpha > 0) & (alpha < c)).to(slope)
    sums, counts = (
        slope.new_zeros(pairs).index_add(0, number, values) for values in (free * slope, free)
    )
    rises = torch.where(second, alpha < c, alpha > 0)
    falls = torch.where(second, alpha > 0, alpha < c)
    top = slope.new_full((pairs,), -torch.inf)
    top = top.scatter_reduce(0, number, torch.where(rises, slope, -torch.inf), "amax")
    low = slope.new_full((pairs,), torch.inf)
    low = low.scatter_reduce(0, number, torch.where(falls, slope, torch.inf), "amin")
    return torch.where(counts > 0, sums / counts.clamp(min=1), (top + low) / 2)
