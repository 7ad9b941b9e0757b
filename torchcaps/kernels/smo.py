"""Support vector machines of pairs of classes, in Triton: sequential minimal optimization.

One program solves one pair; all pairs run in parallel. The dual of pair (a, b), y = -1 for a:

    max  sum_t alpha_t - 1/2 sum_ts alpha_t alpha_s y_t y_s K_ts    0 <= alpha <= C, sum y alpha = 0

With f_t = y_t - sum_s alpha_s y_s K_ts, a step raises the point i with the largest f and lowers the
point j with the largest second-order gain (libsvm's working set selection). It stops if no two
points differ by more than the tolerance. K is the kernel matrix of all points, sorted by class.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcaps.kernels.common import cdiv, pow2


@triton.jit
def _row(t, first, size, second):
    """Row of K of point t of a pair."""
    return tl.where(t < size, first + t, second + t - size)


@triton.jit
def _argmax(best, at, BLOCK: tl.constexpr):
    """Largest value of a block, and its entry of `at`."""
    lane = tl.argmax(best, 0)
    return tl.max(best, 0), tl.sum(tl.where(tl.arange(0, BLOCK) == lane, at, 0), 0)


@triton.jit
def smo(
    gram, ranges, alpha, slope, steps, points, c, tolerance, max_steps,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Solve one pair per program.

    ranges [P,5]: first row and number of points of both classes, and offset of the pair in alpha
    and slope. alpha and slope (f), float64, hold the initial values; steps [P] counts the steps.
    """
    pair = tl.program_id(0)
    first, size = tl.load(ranges + 5 * pair), tl.load(ranges + 5 * pair + 1)
    second, total = tl.load(ranges + 5 * pair + 2), size + tl.load(ranges + 5 * pair + 3)
    base = tl.load(ranges + 5 * pair + 4)
    alpha += base
    slope += base
    lane = tl.arange(0, BLOCK)
    count, running = 0, 1
    while running > 0:
        best = tl.full((BLOCK,), float("-inf"), tl.float64)
        at = tl.zeros((BLOCK,), tl.int32)
        for chunk in range(CHUNKS):
            t = chunk * BLOCK + lane
            a = tl.load(alpha + t, t < total, other=0.0)
            f = tl.load(slope + t, t < total, other=0.0)
            can_rise = (t < total) & (((t >= size) & (a < c)) | ((t < size) & (a > 0)))
            better = can_rise & (f > best)
            best, at = tl.where(better, f, best), tl.where(better, t, at)
        top, i = _argmax(best, at, BLOCK)
        row = gram + _row(i, first, size, second).to(tl.int64) * points

        best = tl.full((BLOCK,), float("-inf"), tl.float64)
        low = tl.full((BLOCK,), float("inf"), tl.float64)
        at = tl.zeros((BLOCK,), tl.int32)
        for chunk in range(CHUNKS):
            t = chunk * BLOCK + lane
            a = tl.load(alpha + t, t < total, other=0.0)
            f = tl.load(slope + t, t < total, other=0.0)
            k = tl.load(row + _row(t, first, size, second), t < total, other=0.0).to(tl.float64)
            can_fall = (t < total) & (((t >= size) & (a > 0)) | ((t < size) & (a < c)))
            low = tl.where(can_fall & (f < low), f, low)
            gap = top - f
            gain = gap * gap / tl.maximum(2 - 2 * k, 1e-12)
            better = can_fall & (gap > 0) & (gain > best)
            best, at = tl.where(better, gain, best), tl.where(better, t, at)
        _, j = _argmax(best, at, BLOCK)
        running = tl.where((top - tl.min(low, 0) >= tolerance) & (count < max_steps), 1, 0)

        if running > 0:
            other = gram + _row(j, first, size, second).to(tl.int64) * points
            k = tl.load(row + _row(j, first, size, second)).to(tl.float64)
            a_i, a_j = tl.load(alpha + i), tl.load(alpha + j)
            room_i = tl.where(i >= size, c - a_i, a_i)
            room_j = tl.where(j >= size, a_j, c - a_j)
            move = (top - tl.load(slope + j)) / tl.maximum(2 - 2 * k, 1e-12)
            move = tl.minimum(move, tl.minimum(room_i, room_j))
            # set a value at its bound exactly
            up_i = tl.where(
                move == room_i, tl.where(i >= size, c, 0.0), a_i + tl.where(i >= size, move, -move)
            )
            down_j = tl.where(
                move == room_j, tl.where(j >= size, 0.0, c), a_j - tl.where(j >= size, move, -move)
            )
            tl.debug_barrier()  # all threads have read before any writes
            tl.store(alpha + i, up_i)
            tl.store(alpha + j, down_j)
            for chunk in range(CHUNKS):
                t = chunk * BLOCK + lane
                mask = t < total
                column = _row(t, first, size, second)
                k_i = tl.load(row + column, mask, other=0.0).to(tl.float64)
                k_j = tl.load(other + column, mask, other=0.0).to(tl.float64)
                f = tl.load(slope + t, mask, other=0.0)
                tl.store(slope + t, f - move * (k_i - k_j), mask)
            tl.debug_barrier()
            count += 1
    tl.store(steps + pair, count)


BLOCK = 4096
MAX_STEPS = 10_000_000
"""Steps per pair before the solver stops."""


def needed(points: int) -> int:
    """Bytes of memory for a fit: the matrix, and one block of its rows in float64."""
    return 4 * points**2 + 3 * 8 * min(points, BLOCK) * points


def rbf(x: Tensor, gamma: float) -> Tensor:
    """exp(-gamma |x_i - x_j|^2), float32. x [N,D] float64 -> [N,N]"""
    size = x.square().sum(1)
    gram = torch.empty(len(x), len(x), dtype=torch.float32, device=x.device)
    for start in range(0, len(x), BLOCK):
        block = slice(start, start + BLOCK)
        distances = torch.addmm(size[block, None] + size, x[block], x.T, alpha=-2)
        gram[block] = distances.clamp_(min=0).mul_(-gamma).exp_()
    return gram


def fit_pairs(
    x: Tensor, labels: Tensor, pairs: Tensor, c: float, gamma: float, tolerance: float = 1e-3
) -> tuple[Tensor, Tensor]:
    """Dual solutions for pairs [P,2] of classes; a positive decision means the second class.

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
    index = torch.arange(int(sizes.sum()), device=x.device) - base[number]
    second = index >= count[number, 0]
    sign = torch.where(second, 1.0, -1.0).to(torch.float64)
    alpha, slope = torch.zeros_like(sign), sign.clone()
    steps = torch.zeros(len(pairs), dtype=torch.int32, device=x.device)
    block = min(BLOCK, pow2(int(sizes.max())))
    options: dict[str, Any] = {"CHUNKS": cdiv(int(sizes.max()), block), "BLOCK": block}
    options |= {"num_warps": 16, "num_stages": 1}
    tensors = (rbf(x[order], gamma), ranges.int(), alpha, slope, steps)
    with torch.cuda.device_of(x):
        smo[(len(pairs),)](*tensors, len(x), c, tolerance, MAX_STEPS, **options)
    row = index + torch.where(second, begin[number, 1] - count[number, 0], begin[number, 0])
    coefficients = x.new_zeros(len(x), len(pairs))
    coefficients[order[row], number] = alpha * sign
    return coefficients, _intercepts(alpha, slope, second, number, c, len(pairs))


def _intercepts(
    alpha: Tensor, slope: Tensor, second: Tensor, number: Tensor, c: float, pairs: int
) -> Tensor:
    """Mean slope of the points strictly between the bounds; without such points the midpoint of
    the largest slope that may rise and the smallest that may fall.
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
