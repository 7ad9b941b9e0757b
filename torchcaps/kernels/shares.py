"""Sums of votes for known shares, in Triton; neither votes nor their gradients are formed.

With the children's poses x [rows,C,D], transforms W [N,J,D,E] (child c uses number c modulo N), the
children's shares s [rows,C/N,J,N] (the layout in which one product with all transforms writes their
logits) and H = d(sums_j) W^T:

    sums_j = (s_j * x) W_j      d(s_j) = sum over the pose of x * H      d(x) = sum_j s_j * H
    d(W_j) = (s_j * x)^T d(sums_j)

One kernel for the sums, one for the gradients of the children, one for those of the transforms.
Every entry has one writer, without atomics, so results are bit-reproducible.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcaps.kernels.common import (
    Tile,
    arithmetic,
    cdiv,
    child_block,
    columns,
    over_poses,
    pow2,
    split,
    stages,
    to_poses,
    total,
)


@triton.jit
def _weigh(x, share, BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, CAST: tl.constexpr):
    """Multiply x [M,BC*BD] by the share of each child [M,BC]."""
    weighed = tl.reshape(x, (BM, BC, BD)).to(tl.float32) * share.to(tl.float32)[:, :, None]
    return tl.reshape(weighed.to(CAST), (BM, BC * BD))


@triton.jit
def gather(
    shares, poses, weight, sums, rows,
    J: tl.constexpr, C: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, JB: tl.constexpr,
    CHUNK: tl.constexpr, CAST: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Sums over children. Grid: row blocks, parents / JB, ranges of CHUNK blocks of children."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    first, split = tl.program_id(1) * JB, tl.program_id(2)
    n, e = tl.arange(0, BC * BD), tl.arange(0, BE)
    d, live = n % BD, m < rows
    totals = ()
    for k in tl.static_range(JB):
        totals = totals + (tl.zeros((BM, BE), tl.float32),)
    for step in range(CHUNK):
        c = (split * CHUNK + step) * BC + n // BD
        cb = (split * CHUNK + step) * BC + tl.arange(0, BC)
        inside = (c < C) & (d < D)
        x = tl.load(
            poses + (m[:, None] * C + c[None, :]) * D + d[None, :],
            live[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        new_totals = ()
        for k in tl.static_range(JB):
            j = first + k
            share = tl.load(
                shares + m[:, None] * (J * C) + (cb // N * J * N + j * N + cb % N)[None, :],
                live[:, None] & (cb < C)[None, :] & (j < J), other=0.0,
            )  # fmt: skip
            w = tl.load(
                weight + ((c % N * J + j) * D + d)[:, None] * E + e[None, :],
                inside[:, None] & (e < E)[None, :] & (j < J), other=0.0,
            ).to(CAST)  # fmt: skip
            weighed = _weigh(x, share, BM, BC, BD, CAST)
            new_totals = new_totals + (tl.dot(weighed, w, totals[k], input_precision=P),)
        totals = new_totals
    for k in tl.static_range(JB):
        to = sums + ((split * rows + m)[:, None] * J + first + k) * E + e[None, :]
        tl.store(to, totals[k], live[:, None] & (e < E)[None, :] & (first + k < J))


@triton.jit
def to_children(
    shares, poses, weight, grad, d_shares, d_poses, rows,
    J: tl.constexpr, C: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    CL: tl.constexpr, DL: tl.constexpr, CAST: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Gradients of shares and poses. Grid: row blocks, child blocks."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    c, d = columns(tl.arange(0, BC * BD), BD, CL, DL)
    c += tl.program_id(1) * BC
    e = tl.arange(0, BE)
    inside = (c < C) & (d < D)
    x_at = (m[:, None] * C + c[None, :]) * D + d[None, :]
    x_mask = (m < rows)[:, None] & inside[None, :]
    x = tl.load(poses + x_at, x_mask, other=0.0).to(tl.float32)
    m3 = m[:, None, None]
    c3 = tl.program_id(1) * BC + child_block(BC, CL)
    s_at, s_mask = m3 * (J * C) + c3 // N * (J * N) + c3 % N, (m3 < rows) & (c3 < C)
    g_at, g_mask = m[:, None] * (J * E) + e[None, :], (m < rows)[:, None] & (e < E)[None, :]
    w_at = (c % N * (J * D * E) + d * E)[None, :] + e[:, None]
    w_mask = inside[None, :] & (e < E)[:, None]
    d_x = tl.zeros((BM, BC * BD), tl.float32)
    for j in range(J):
        g = tl.load(grad + g_at + j * E, g_mask, other=0.0).to(CAST)
        wt = tl.load(weight + w_at + j * (D * E), w_mask, other=0.0).to(CAST)
        share = tl.load(shares + s_at + j * N, s_mask, other=0.0).to(tl.float32)
        h = tl.dot(g, wt, input_precision=P)
        tl.store(d_shares + s_at + j * N, over_poses(x * h, BM, 1, BC, BD, CL, DL), s_mask)
        d_x += to_poses(share, BM, 1, BC, BD, CL, DL) * h
    tl.store(d_poses + x_at, d_x, x_mask)


@triton.jit
def to_transforms(
    shares, poses, grad, d_weight, rows,
    J: tl.constexpr, C: tl.constexpr, N: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, JB: tl.constexpr,
    CHUNK: tl.constexpr, CAST: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Gradients of the transforms. Grid: blocks of transforms, parents / JB, ranges of rows.

    Children that share a transform count as separate rows: row v holds group v modulo C/N.
    """
    first, split = tl.program_id(1) * JB, tl.program_id(2)
    n, e = tl.arange(0, BC * BD), tl.arange(0, BE)
    t, d = tl.program_id(0) * BC + n // BD, n % BD
    tb = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = (t < N) & (d < D)
    totals = ()
    for k in tl.static_range(JB):
        totals = totals + (tl.zeros((BC * BD, BE), tl.float32),)
    for step in range(CHUNK):
        v = (split * CHUNK + step) * BM + tl.arange(0, BM)
        live, row = v < rows * (C // N), v // (C // N)
        x = tl.load(
            poses + (v[:, None] * N + t[None, :]) * D + d[None, :],
            live[:, None] & inside[None, :], other=0.0,
        )  # fmt: skip
        new_totals = ()
        for k in tl.static_range(JB):
            j = first + k
            share = tl.load(
                shares + ((v * J + j) * N)[:, None] + tb[None, :],
                live[:, None] & (tb < N)[None, :] & (j < J), other=0.0,
            )  # fmt: skip
            g = tl.load(
                grad + ((row * J + j) * E)[:, None] + e[None, :],
                live[:, None] & (e < E)[None, :] & (j < J), other=0.0,
            ).to(CAST)  # fmt: skip
            weighed = tl.trans(_weigh(x, share, BM, BC, BD, CAST))
            new_totals = new_totals + (tl.dot(weighed, g, totals[k], input_precision=P),)
        totals = new_totals
    for k in tl.static_range(JB):
        to = ((split * N + t) * J + first + k) * (D * E) + d * E
        mask = inside[:, None] & (e < E)[None, :] & (first + k < J)
        tl.store(d_weight + to[:, None] + e[None, :], totals[k], mask)


TILES = {
    "gather": Tile(64, 128, 4, 3, 2),
    "to_children": Tile(64, 128, 4, 3),
    "to_transforms": Tile(64, 128, 4, 3, 2),
}
"""Tile of each kernel, measured on an H200; see docs/background/kernels.md."""


def options(kernel: str, poses: Tensor, weight: Tensor) -> dict[str, Any]:
    t, children = TILES[kernel], poses.shape[1]
    transforms, parents, in_dim, out_dim = weight.shape
    wide, out = pow2(in_dim), max(16, pow2(out_dim))
    limit = transforms if kernel == "to_transforms" else children
    block = max(1, 16 // wide, min(pow2(limit), t.columns // wide))
    size = poses.element_size()
    stage_bytes = size * (t.rows * block * wide + t.parents * out * (block * wide + t.rows))
    constants = {
        **arithmetic(poses),
        "J": parents, "C": children, "N": transforms, "D": in_dim, "E": out_dim,
        "BM": t.rows, "BC": block, "BD": wide, "BE": out,
        "num_warps": t.warps,
        "num_stages": stages(t.stages, stage_bytes, size * t.rows * block * wide),
    }  # fmt: skip
    if kernel == "to_children":
        return {**constants, "CL": min(4, block), "DL": min(2, wide)}
    return {**constants, "JB": min(t.parents, pow2(parents))}


def forward(shares: Tensor, poses: Tensor, weight: Tensor) -> Tensor:
    """shares [rows,C/N,J,N], poses [rows,C,D], weight [N,J,D,E] -> sums [rows,J,E]"""
    rows, children, _ = poses.shape
    _, parents, _, out_dim = weight.shape
    o = options("gather", poses, weight)
    grid = cdiv(rows, o["BM"]), cdiv(parents, o["JB"])
    ranges, chunk = split(cdiv(children, o["BC"]), grid[0] * grid[1], poses.device)
    o["CHUNK"] = chunk
    sums = poses.new_empty((ranges, rows, parents, out_dim), dtype=torch.float32)
    gather[(*grid, ranges)](shares, poses, weight, sums, rows, **o)
    return total(sums)


def backward(
    grad: Tensor, shares: Tensor, poses: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of shares, poses and weight. grad [rows,J,E]"""
    rows, children, _ = poses.shape
    transforms, parents = weight.shape[:2]
    d_shares, d_poses = torch.empty_like(shares), torch.empty_like(poses)
    o = options("to_children", poses, weight)
    grid = cdiv(rows, o["BM"]), cdiv(children, o["BC"])
    to_children[grid](shares, poses, weight, grad, d_shares, d_poses, rows, **o)
    o = options("to_transforms", poses, weight)
    grid = cdiv(transforms, o["BC"]), cdiv(parents, o["JB"])
    blocks = cdiv(rows * (children // transforms), o["BM"])
    ranges, chunk = split(blocks, grid[0] * grid[1], poses.device)
    o["CHUNK"] = chunk
    dtype = weight.dtype if ranges == 1 else torch.float32
    d_weight = weight.new_empty((ranges, *weight.shape), dtype=dtype)
    to_transforms[(*grid, ranges)](shares, poses, grad, d_weight, rows, **o)
    return d_shares, d_poses, total(d_weight).to(weight.dtype)
