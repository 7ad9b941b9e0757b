"""Which pose of a grid is the child of a window, in Triton."""

import triton
import triton.language as tl


@triton.jit
def corner(
    row, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, I: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """Where each row's window begins on the grid of children, and the index of its first child."""
    y = row // WO % HO * STRIDE - PAD
    x = row % WO * STRIDE - PAD
    return y, x, ((row // (HO * WO) * H + y) * W + x) * I


@triton.jit
def child(
    c, y, x, first_at, live, H: tl.constexpr, W: tl.constexpr, I: tl.constexpr,
    PAD: tl.constexpr, KS: tl.constexpr,
):  # fmt: skip
    """The index on the grid of child c of each window, and whether it is there."""
    ky, kx = c // I // KS, c // I % KS
    inside = live
    if PAD > 0:
        inside = live & (y + ky >= 0) & (y + ky < H) & (x + kx >= 0) & (x + kx < W)
    return first_at + (ky * W + kx) * I + c % I, inside


@triton.jit
def children(
    row, c, rows, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr,
    WO: tl.constexpr, I: tl.constexpr, KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """The same for children c of rows that broadcast against them."""
    y, x, first_at = corner(row, H, W, HO, WO, I, STRIDE, PAD)
    return child(c, y, x, first_at, (row < rows) & (c < C), H, W, I, PAD, KS)
