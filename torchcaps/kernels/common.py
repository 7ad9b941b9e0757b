"""Sizes of one fused step, tile settings, and helpers that several kernels share."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2E = tl.constexpr(1.4426950408889634)
"""Kernels take exponentials and logarithms to base 2, which are one instruction each."""
LN2 = tl.constexpr(0.6931471805599453)


@dataclass(frozen=True)
class Shape:
    """Sizes of one fused step. Rows are batch x positions of the parents."""

    batch: int
    height: int
    width: int
    types: int
    kernel: int
    stride: int
    padding: int
    pose_rows: int
    in_dim: int
    parents: int
    out_dim: int
    transforms: int

    @property
    def out_height(self) -> int:
        return (self.height + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def out_width(self) -> int:
        return (self.width + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def rows(self) -> int:
        return self.batch * self.out_height * self.out_width

    @property
    def children(self) -> int:
        return self.kernel**2 * self.types

    @property
    def covers(self) -> bool:
        """True if every pose is the child of one window, in the same order."""
        return self.kernel == 1 and self.stride == 1 and self.padding == 0

    def constants(self) -> dict[str, int]:
        return {
            "H": self.height,
            "W": self.width,
            "HO": self.out_height,
            "WO": self.out_width,
            "I": self.types,
            "J": self.parents,
            "C": self.children,
            "WI": self.transforms,
            "KS": self.kernel,
            "STRIDE": self.stride,
            "PAD": self.padding,
            "R": self.pose_rows,
            "D": self.in_dim,
            "E": self.out_dim,
        }

    def fold(self, values: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Sum the values of each child over its windows, and over the first axis.

        [N,rows,C,...] -> [B,H,W,I,...]
        """
        grid = (self.batch, self.height, self.width, self.types)
        last = values.shape[3:]
        if self.covers:
            return total(values).to(dtype).view(*grid, *last)
        folded = values.new_empty((*grid, *last), dtype=dtype)
        c = self.constants()
        names = ("H", "W", "HO", "WO", "I", "C", "KS", "STRIDE", "PAD")
        fold_kernel[(cdiv(folded.numel(), 1024),)](
            values, folded, folded.numel(), values.stride(0), **{n: c[n] for n in names},
            DIM=last.numel(), BLOCKS=values.shape[0], BLOCK=1024,
        )  # fmt: skip
        return folded

    def unfold(self, grid: Tensor, outside: float) -> Tensor:
        """Values of the children of each window. [B,H,W,I] -> [B*H'*W',C]"""
        p, k, s = self.padding, self.kernel, self.stride
        padded = torch.nn.functional.pad(grid, (0, 0, p, p, p, p), value=outside)
        windows = padded.unfold(1, k, s).unfold(2, k, s)  # [B,H',W',I,K,K]
        return windows.permute(0, 1, 2, 4, 5, 3).reshape(-1, self.children)

    def over_windows(self, lse: Tensor) -> Tensor:
        """Log-sum-exp, to base 2, of each child over all windows that see it; infinite outside
        the grid.

        [rows,C] -> [rows,C]
        """
        grid = self.height, self.width, self.types
        slots = self.height * self.width * self.types + 1  # slot 0: outside the grid
        numbers = torch.arange(1, slots, device=lse.device).view(1, *grid)
        slot = self.unfold(numbers, 0).view(1, -1).expand(self.batch, -1)
        lse = lse.view(self.batch, -1)
        top = lse.new_full((self.batch, slots), -torch.inf).scatter_reduce(1, slot, lse, "amax")
        sums = self.fold((lse - top.gather(1, slot)).exp2().view(1, self.rows, self.children))
        return self.unfold(top[:, 1:].view(-1, *grid) + sums.log2(), torch.inf)


@dataclass(frozen=True)
class Tile:
    """Tile of a kernel's program, chosen by measurement."""

    rows: int
    """Rows of the products: batch x positions x pose rows."""
    columns: int
    """Children x pose entries."""
    warps: int
    stages: int
    parents: int = 1
    """Parents per program."""


def pow2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def arithmetic(poses: Tensor) -> dict[str, Any]:
    """Type and precision of products: the poses' type, or float32 with torch's matmul precision.

    Triton's interpreter computes bfloat16 products wrongly without an error, so it gets float32.
    """
    interpreted = poses.device.type == "cpu"
    half = poses.dtype in (torch.bfloat16, torch.float16) and not interpreted
    try:
        exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # set through torch's newer API, which does not mix with this one
        exact = torch.backends.cuda.matmul.fp32_precision == "ieee"
    return {
        "CAST": getattr(tl, str(poses.dtype).removeprefix("torch.")) if half else tl.float32,
        "P": "ieee" if torch.version.hip else "tf32x3" if exact or interpreted else "tf32",
    }


def multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def split(
    blocks: int, programs: int, device: torch.device, max_ranges: int = 64
) -> tuple[int, int]:
    """Ranges and blocks per range: more ranges fill the GPU, but each needs a copy of the sums."""
    ranges = max(1, min(max_ranges, blocks, 2 * multiprocessors(device) // max(1, programs)))
    chunk = max(1, cdiv(blocks, ranges))
    return cdiv(blocks, chunk), chunk


def shared_memory() -> int:
    """Bytes of shared memory that a program can have on this GPU; without one those of an H200."""
    return _shared_memory(torch.cuda.current_device()) if torch.cuda.is_available() else 227 * 1024


@cache
def _shared_memory(device: int) -> int:
    return triton.runtime.driver.active.utils.get_device_properties(device)["max_shared_mem"]


def narrower(t: Tile) -> Iterator[Tile]:
    """A tile, and smaller ones for GPUs with less shared memory: fewer parents, columns, rows."""
    yield t
    for field, least in (("parents", 1), ("columns", 16), ("rows", 16)):
        while getattr(t, field) > least:
            t = replace(t, **{field: getattr(t, field) // 2})
            yield t


def stages(preferred: int, stage_bytes: int, fixed_bytes: int = 0) -> int:
    """Pipeline stages whose buffers fit into two thirds of the shared memory; the rest is for
    changes of layout, and for a second program.
    """
    return max(1, min(preferred, (2 * shared_memory() // 3 - fixed_bytes) // stage_bytes))


def total(copies: Tensor) -> Tensor:
    """Sum over the first axis, without a kernel if it has one entry."""
    return copies[0] if copies.shape[0] == 1 else copies.sum(0)


@triton.jit
def columns(n, BD: tl.constexpr, CL: tl.constexpr, DL: tl.constexpr):
    """Child and pose entry of column n."""
    DH: tl.constexpr = BD // DL
    return n // (DL * CL * DH) * CL + n // DL % CL, n // (DL * CL) % DH * DL + n % DL


@triton.jit
def child_block(BC: tl.constexpr, CL: tl.constexpr):
    """Numbers 0 to BC-1 in the layout of `over_poses`. -> [1,CH,CL]"""
    return ((tl.arange(0, BC // CL) * CL)[:, None] + tl.arange(0, CL)[None, :])[None, :, :]


@triton.jit
def over_poses(
    tile, BM: tl.constexpr, RP: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
    CL: tl.constexpr, DL: tl.constexpr,
):  # fmt: skip
    """Sum over each child's pose. [M,N] -> [M/R,CH,CL]"""
    entries = tl.reshape(tile, (BM // RP, RP, BC // CL, BD // DL, CL, DL))
    return tl.sum(tl.sum(tl.sum(entries, 5), 3), 1)


@triton.jit
def to_poses(
    share, BM: tl.constexpr, RP: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
    CL: tl.constexpr, DL: tl.constexpr,
):  # fmt: skip
    """Transpose of `over_poses`. [M/R,CH,CL] -> [M,N]"""
    wide = share[:, None, :, None, :, None]
    wide = tl.broadcast_to(wide, (BM // RP, RP, BC // CL, BD // DL, CL, DL))
    return tl.reshape(wide, (BM, BC * BD))


@triton.jit
def as_left(tile, BM: tl.constexpr, BN: tl.constexpr, CAST: tl.constexpr):
    """Reorder the columns as a product reads its left operand from registers.

    A product leaves columns 2t and 2t+1 in a thread. As the left operand of the next product,
    16-bit types need the same two columns, 32-bit types t and t+4. The sum over columns may run in
    any order, so relabeling them saves a trip through shared memory. The right operand's rows have
    the same order, `left_order`.
    """
    if CAST == tl.float32:
        groups = tl.permute(tl.reshape(tile, (BM, BN // 8, 4, 2)), (0, 1, 3, 2))
        tile = tl.reshape(groups, (BM, BN))
    return tile


@triton.jit
def left_order(k, CAST: tl.constexpr):
    """Order of the right operand's rows that matches `as_left`."""
    if CAST == tl.float32:
        k = k // 8 * 8 + k % 4 * 2 + k // 4 % 2
    return k


@triton.jit
def corner(
    row, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, I: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """Top left corner of each row's window on the grid, and index of its first child."""
    y = row // WO % HO * STRIDE - PAD
    x = row % WO * STRIDE - PAD
    return y, x, ((row // (HO * WO) * H + y) * W + x) * I


@triton.jit
def child(
    c, y, x, first_at, live, H: tl.constexpr, W: tl.constexpr, I: tl.constexpr,
    PAD: tl.constexpr, KS: tl.constexpr,
):  # fmt: skip
    """Index on the grid of child c of each window, and mask of the children inside the grid."""
    ky, kx = c // I // KS, c // I % KS
    inside = live
    if PAD > 0:
        inside = live & (y + ky >= 0) & (y + ky < H) & (x + kx >= 0) & (x + kx < W)
    return first_at + (ky * W + kx) * I + c % I, inside


@triton.jit
def children(
    row, base, lane, rows, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr,
    WO: tl.constexpr, I: tl.constexpr, KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    BC: tl.constexpr,
):  # fmt: skip
    """Like `child`, for children base + lane and rows that broadcast against each other.

    BC: lanes are 0 to BC-1, and base is a multiple of BC; 0: lanes are any. A block of children
    that divides the types is at one place of the window: its offset is one number.
    """
    y, x, first_at = corner(row, H, W, HO, WO, I, STRIDE, PAD)
    live = (row < rows) & (base + lane < C)
    if BC > 0 and I % max(BC, 1) == 0:
        at, inside = child(base, y, x, first_at, live, H, W, I, PAD, KS)
        return at + lane, inside
    return child(base + lane, y, x, first_at, live, H, W, I, PAD, KS)


@triton.jit
def transform(c, C: tl.constexpr, WI: tl.constexpr):
    """Number of child c's transform."""
    if WI < C:
        c = c % WI
    return c


@triton.jit
def fold_kernel(
    windowed, folded, numel, block_stride, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr,
    WO: tl.constexpr, I: tl.constexpr, C: tl.constexpr, DIM: tl.constexpr, KS: tl.constexpr,
    STRIDE: tl.constexpr, PAD: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum of each child's values over the windows that see it, found by index."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d, i = n % DIM, n // DIM % I
    x, y = n // (DIM * I) % W, n // (DIM * I * W) % H
    image = n // (DIM * I * W * H)
    total = tl.zeros((BLOCK,), tl.float32)
    for place in range(KS * KS):
        top, left = y + PAD - place // KS, x + PAD - place % KS
        seen = (n < numel) & (top >= 0) & (left >= 0)
        seen = seen & (top % STRIDE == 0) & (left % STRIDE == 0)
        seen = seen & (top // STRIDE < HO) & (left // STRIDE < WO)
        row = (image * HO + top // STRIDE) * WO + left // STRIDE
        at = (row.to(tl.int64) * C + place * I + i) * DIM + d
        for block in range(BLOCKS):
            total += tl.load(windowed + at + block * block_stride, seen, other=0.0)
    tl.store(folded + n, total.to(folded.dtype.element_ty), n < numel)


@triton.jit
def load_parents(ptr, row, j, e, mask, J: tl.constexpr, R: tl.constexpr, E: tl.constexpr):
    """R tiles [BM,BN] of a parent tensor [rows,J,R,E]."""
    tiles = ()
    for p in tl.static_range(R):
        at = (row * J)[:, None] * (R * E) + (j * (R * E) + p * E + e)[None, :]
        tiles = tiles + (tl.load(ptr + at, mask, other=0.0).to(tl.float32),)
    return tiles


@triton.jit
def store_parents(ptr, tiles, row, j, e, mask, J: tl.constexpr, R: tl.constexpr, E: tl.constexpr):
    """The reverse of `load_parents`."""
    for p in tl.static_range(R):
        at = (row * J)[:, None] * (R * E) + (j * (R * E) + p * E + e)[None, :]
        tl.store(ptr + at, tiles[p], mask)


@triton.jit
def over_parent_poses(
    tile, BM: tl.constexpr, BJ: tl.constexpr, BE: tl.constexpr, EL: tl.constexpr, JL: tl.constexpr
):
    """Sum over the entries of each parent's pose. [BM,BJ*BE] -> [BM,JH,JL]"""
    entries = tl.reshape(tile, (BM, BJ // JL, BE // EL, JL, EL))
    return tl.sum(tl.sum(entries, 4), 2)


@triton.jit
def to_parent_poses(
    share, BM: tl.constexpr, BJ: tl.constexpr, BE: tl.constexpr, EL: tl.constexpr, JL: tl.constexpr
):
    """Transpose of `over_parent_poses`. [BM,JH,JL] -> [BM,BJ*BE]"""
    wide = tl.broadcast_to(share[:, :, None, :, None], (BM, BJ // JL, BE // EL, JL, EL))
    return tl.reshape(wide, (BM, BJ * BE))


@triton.jit
def stack(tiles, N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Stack N = 2, 4 or 8 tiles [BM,BN] below each other. -> [N*BM,BN]"""
    if N == 2:
        joined = tl.join(tiles[0], tiles[1])
    elif N == 4:
        joined = tl.join(tl.join(tiles[0], tiles[2]), tl.join(tiles[1], tiles[3]))
    else:
        even = tl.join(tl.join(tiles[0], tiles[4]), tl.join(tiles[2], tiles[6]))
        odd = tl.join(tl.join(tiles[1], tiles[5]), tl.join(tiles[3], tiles[7]))
        joined = tl.join(even, odd)
    return tl.reshape(tl.permute(tl.reshape(joined, (BM, BN, N)), (2, 0, 1)), (N * BM, BN))


@triton.jit
def load_children(
    poses, m, p, base, lane, d, rows, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    HO: tl.constexpr, WO: tl.constexpr, I: tl.constexpr, KS: tl.constexpr, STRIDE: tl.constexpr,
    PAD: tl.constexpr, R: tl.constexpr, D: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Poses of the children base + lane of rows m. -> [M,N]"""
    at, inside = children(
        m[:, None], base, lane[None, :], rows, C, H, W, HO, WO, I, KS, STRIDE, PAD, BC
    )
    mask = inside & (p < R)[:, None] & (d < D)[None, :]
    at = at * (R * D) + (p * D)[:, None] + d[None, :]
    return tl.load(poses + at, mask, other=0.0).to(tl.float32)


@triton.jit
def load_rows(
    rows, J: tl.constexpr, R: tl.constexpr, E: tl.constexpr, RP: tl.constexpr, BM: tl.constexpr,
    BE: tl.constexpr,
):  # fmt: skip
    """Indices of a program's rows.

    -> row and pose row of each line of a tile [BM]; rows [BM/RP,1,1]; pose entries [BE]; offsets
    and mask of the first parent in a tensor [rows,J,R,E]
    """
    m = tl.program_id(0) * (BM // RP) + tl.arange(0, BM) // RP
    p = tl.arange(0, BM) % RP
    row3 = (tl.program_id(0) * (BM // RP) + tl.arange(0, BM // RP))[:, None, None]
    e = tl.arange(0, BE)
    at = m[:, None] * (J * R * E) + (p * E)[:, None] + e[None, :]
    return m, p, row3, e, at, ((m < rows) & (p < R))[:, None] & (e < E)[None, :]


@triton.jit
def two_terms(q, CAST: tl.constexpr):
    """A query as two terms of the products' type; float32 is one term, and the second unused."""
    high = q.to(CAST)
    return high, (q - high.to(tl.float32)).to(CAST)


@triton.jit
def dot_score(high, low, wt, CAST: tl.constexpr, P: tl.constexpr):
    """G = query W^T. With one 16-bit term its error would grow with the logits."""
    g = tl.dot(high, wt, input_precision=P)
    if CAST != tl.float32:
        g = tl.dot(low, wt, g)
    return g
