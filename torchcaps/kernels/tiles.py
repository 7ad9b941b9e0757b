"""Orders of a tile's columns that keep sums and operands of products inside a thread, in Triton.

A tile is M rows (batch x positions x the R rows of a matrix pose) by N columns (BC children x D
entries). Columns are ordered (CH, DH, 4, 2) for children and entries, because a product leaves
columns 2k, 2k+1 in one thread and its neighbours 4 lanes wide: so a sum over entries stays inside
a thread.
"""

import triton
import triton.language as tl


@triton.jit
def columns(n, BD: tl.constexpr, CL: tl.constexpr, DL: tl.constexpr):
    """Child and pose entry of column n."""
    DH: tl.constexpr = BD // DL
    return n // (DL * CL * DH) * CL + n // DL % CL, n // (DL * CL) % DH * DL + n % DL


@triton.jit
def over_poses(
    tile, BM: tl.constexpr, RP: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
    CL: tl.constexpr, DL: tl.constexpr,
):  # fmt: skip
    """Sum over each child's pose. [M,N] -> [M/R,CH,CL]"""
    parts = tl.reshape(tile, (BM // RP, RP, BC // CL, BD // DL, CL, DL))
    return tl.sum(tl.sum(tl.sum(parts, 5), 3), 1)


@triton.jit
def to_poses(
    share, BM: tl.constexpr, RP: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
    CL: tl.constexpr, DL: tl.constexpr,
):  # fmt: skip
    """The transpose of that. [M/R,CH,CL] -> [M,N]"""
    wide = share[:, None, :, None, :, None]
    wide = tl.broadcast_to(wide, (BM // RP, RP, BC // CL, BD // DL, CL, DL))
    return tl.reshape(wide, (BM, BC * BD))


@triton.jit
def as_left(tile, BM: tl.constexpr, BN: tl.constexpr, CAST: tl.constexpr):
    """The columns in the order in which a product takes its left operand from registers.

    A product leaves columns 2t and 2t+1 in a thread. As its next left operand it wants the same two
    of 16 bits, but t and t+4 of 32; as the sum over columns may run in any order, naming those so
    saves a trip through shared memory. The right operand's rows go in the same order, `left_order`.
    """
    if CAST == tl.float32:
        parts = tl.permute(tl.reshape(tile, (BM, BN // 8, 4, 2)), (0, 1, 3, 2))
        tile = tl.reshape(parts, (BM, BN))
    return tile


@triton.jit
def left_order(k, CAST: tl.constexpr):
    if CAST == tl.float32:
        k = k // 8 * 8 + k % 4 * 2 + k // 4 % 2
    return k
