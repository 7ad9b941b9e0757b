"""Support vector machines of pairs of classes, in Triton: sequential minimal optimisation.

One program solves one pair, and all pairs run side by side. The dual of pair (a, b), y = -1 for a:

    max  sum_t alpha_t - 1/2 sum_ts alpha_t alpha_s y_t y_s K_ts    0 <= alpha <= C, sum y alpha = 0

With f_t = y_t - sum_s alpha_s y_s K_ts a step takes the point i that most wants to rise (largest f)
and the j that then gains most by falling (second order, as libsvm chooses it), and ends where no
two points differ by the tolerance. K is the kernel matrix of all points, in the order of classes.
"""

import triton
import triton.language as tl


@triton.jit
def _where(t, first, size, second):
    """The row of K of a pair's point."""
    return tl.where(t < size, first + t, second + t - size)


@triton.jit
def _first_of(best, at, BLOCK: tl.constexpr):
    """The largest of a block, and what stands beside it."""
    lane = tl.argmax(best, 0)
    return tl.max(best, 0), tl.sum(tl.where(tl.arange(0, BLOCK) == lane, at, 0), 0)


@triton.jit
def smo(
    gram, ranges, alpha, slope, steps, points, c, tolerance, most,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """ranges [P,5]: where each class begins and how many it has, and where the pair's numbers are.

    alpha and slope (f) are float64 and hold a start; steps [P] says how many were taken.
    """
    pair = tl.program_id(0)
    first, size = tl.load(ranges + 5 * pair), tl.load(ranges + 5 * pair + 1)
    second, total = tl.load(ranges + 5 * pair + 2), size + tl.load(ranges + 5 * pair + 3)
    base = tl.load(ranges + 5 * pair + 4)
    alpha += base
    slope += base
    lane = tl.arange(0, BLOCK)
    count, going = 0, 1
    while going > 0:
        best = tl.full((BLOCK,), float("-inf"), tl.float64)
        at = tl.zeros((BLOCK,), tl.int32)
        for chunk in range(CHUNKS):
            t = chunk * BLOCK + lane
            a = tl.load(alpha + t, t < total, other=0.0)
            f = tl.load(slope + t, t < total, other=0.0)
            may = (t < total) & (((t >= size) & (a < c)) | ((t < size) & (a > 0)))
            better = may & (f > best)
            best, at = tl.where(better, f, best), tl.where(better, t, at)
        top, i = _first_of(best, at, BLOCK)
        row = gram + _where(i, first, size, second).to(tl.int64) * points

        best = tl.full((BLOCK,), float("-inf"), tl.float64)
        low = tl.full((BLOCK,), float("inf"), tl.float64)
        at = tl.zeros((BLOCK,), tl.int32)
        for chunk in range(CHUNKS):
            t = chunk * BLOCK + lane
            a = tl.load(alpha + t, t < total, other=0.0)
            f = tl.load(slope + t, t < total, other=0.0)
            k = tl.load(row + _where(t, first, size, second), t < total, other=0.0).to(tl.float64)
            may = (t < total) & (((t >= size) & (a > 0)) | ((t < size) & (a < c)))
            low = tl.where(may & (f < low), f, low)
            apart = top - f
            gain = apart * apart / tl.maximum(2 - 2 * k, 1e-12)
            better = may & (apart > 0) & (gain > best)
            best, at = tl.where(better, gain, best), tl.where(better, t, at)
        _, j = _first_of(best, at, BLOCK)
        going = tl.where((top - tl.min(low, 0) >= tolerance) & (count < most), 1, 0)

        if going > 0:
            other = gram + _where(j, first, size, second).to(tl.int64) * points
            k = tl.load(row + _where(j, first, size, second)).to(tl.float64)
            a_i, a_j = tl.load(alpha + i), tl.load(alpha + j)
            room_i = tl.where(i >= size, c - a_i, a_i)
            room_j = tl.where(j >= size, a_j, c - a_j)
            move = (top - tl.load(slope + j)) / tl.maximum(2 - 2 * k, 1e-12)
            move = tl.minimum(move, tl.minimum(room_i, room_j))
            # a bound that is reached is reached exactly
            up_i = tl.where(
                move == room_i, tl.where(i >= size, c, 0.0), a_i + tl.where(i >= size, move, -move)
            )
            down_j = tl.where(
                move == room_j, tl.where(j >= size, 0.0, c), a_j - tl.where(j >= size, move, -move)
            )
            tl.debug_barrier()  # every thread has read what is written now
            tl.store(alpha + i, up_i)
            tl.store(alpha + j, down_j)
            for chunk in range(CHUNKS):
                t = chunk * BLOCK + lane
                there = t < total
                column = _where(t, first, size, second)
                k_i = tl.load(row + column, there, other=0.0).to(tl.float64)
                k_j = tl.load(other + column, there, other=0.0).to(tl.float64)
                f = tl.load(slope + t, there, other=0.0)
                tl.store(slope + t, f - move * (k_i - k_j), there)
            tl.debug_barrier()
            count += 1
    tl.store(steps + pair, count)
