"""Routing of children that share transforms over positions, in Triton; without votes.

With x[b,p,n] the pose of type n at position p, W_nj its transform for parent j and q_bj the
parent's query, everything that depends on the type and not on the position is a small product
outside of these kernels:

    G[b,n,j] = W_nj q_bj     sums_bj = sum over n of Y[b,n,j] W_nj

Inside, a type of an image is an attention with softmax over the parents j in place of positions:

    share = softmax over j of x . G_j     Y_j = sum over p of share_j x

The rows of a matrix pose are entries of one vector. A position's pose is divided by its
denominator, not its shares.
Half-precision poses meet G as the sum of two numbers, so that logits are as exact as in float32.
Each program owns what it writes: no atomics, the same bits every time.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcaps.kernels.common import arithmetic, cdiv, pow2, shared_memory, split, total

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _load_queries(ptr, J: tl.constexpr, D: tl.constexpr, BJ: tl.constexpr, BD: tl.constexpr):
    """A program's queries [BJ,BD] in a tensor [ranges,B,N,J,D] of one range, and where they are."""
    j, d = tl.arange(0, BJ), tl.arange(0, BD)
    at = (tl.program_id(0) * J + j)[:, None] * D + d[None, :]
    mask = (j < J)[:, None] & (d < D)[None, :]
    return tl.load(ptr + at, mask, other=0.0), at, mask


@triton.jit
def _logits(x, query, BJ: tl.constexpr, J: tl.constexpr, CAST: tl.constexpr, P: tl.constexpr):
    """Logits to base 2. x [BP,BD], query [BJ,BD] -> [BP,BJ]"""
    high = query.to(CAST)
    logits = tl.dot(x, tl.trans(high), input_precision=P)
    if CAST != tl.float32:
        low = (query - high.to(tl.float32)).to(CAST)
        logits = tl.dot(x, tl.trans(low), logits)
    return tl.where((tl.arange(0, BJ) < J)[None, :], logits, -float("inf"))


@triton.jit
def attend(
    poses, query, sums, top, mass, positions,
    J: tl.constexpr, N: tl.constexpr, D: tl.constexpr, BP: tl.constexpr, BJ: tl.constexpr,
    BD: tl.constexpr, CHUNK: tl.constexpr, CAST: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Sums over positions. Grid: images x types, ranges of CHUNK blocks of positions.

    top and mass [B,N,P]: largest logit and softmax denominator
    """
    n, b, part = tl.program_id(0) % N, tl.program_id(0) // N, tl.program_id(1)
    q, q_at, q_mask = _load_queries(query, J, D, BJ, BD)
    q *= LOG2E
    d = tl.arange(0, BD)
    totals = tl.zeros((BJ, BD), tl.float32)
    image = b.to(tl.int64) * positions * N
    for step in range(CHUNK):
        p = (part * CHUNK + step) * BP + tl.arange(0, BP)
        live = p < positions
        x_at = image * D + (p * (N * D) + n * D)[:, None] + d[None, :]
        x = tl.load(poses + x_at, live[:, None] & (d < D)[None, :], other=0.0).to(CAST)
        logits = _logits(x, q, BJ, J, CAST, P)
        highest = tl.max(logits, 1)
        share = tl.exp2(logits - highest[:, None])
        total = tl.sum(share, 1)
        tl.store(top + image + n * positions + p, highest, live)
        tl.store(mass + image + n * positions + p, total, live)
        scaled = (x.to(tl.float32) / total[:, None]).to(CAST)
        totals = tl.dot(tl.trans(share.to(CAST)), scaled, totals, input_precision=P)
    tl.store(sums + part * (tl.num_programs(0) * J * D) + q_at, totals, q_mask)


@triton.jit
def attend_backward(
    poses, query, top, mass, grad, d_poses, d_query, positions,
    J: tl.constexpr, N: tl.constexpr, D: tl.constexpr, BP: tl.constexpr, BJ: tl.constexpr,
    BD: tl.constexpr, CHUNK: tl.constexpr, CAST: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Gradients of poses and queries. Grid as in `attend`.

    What the softmax backward subtracts, sum_j share_j x . d(Y_j), is x times the poses' gradient
    through the sums.
    """
    n, b, part = tl.program_id(0) % N, tl.program_id(0) // N, tl.program_id(1)
    q, q_at, q_mask = _load_queries(query, J, D, BJ, BD)
    g, _, _ = _load_queries(grad, J, D, BJ, BD)
    g = g.to(CAST)
    d = tl.arange(0, BD)
    to_query = tl.zeros((BJ, BD), tl.float32)
    image = b.to(tl.int64) * positions * N
    for step in range(CHUNK):
        p = (part * CHUNK + step) * BP + tl.arange(0, BP)
        live = p < positions
        x_at = image * D + (p * (N * D) + n * D)[:, None] + d[None, :]
        x_mask = live[:, None] & (d < D)[None, :]
        x = tl.load(poses + x_at, x_mask, other=0.0).to(CAST)
        total = tl.log2(tl.load(mass + image + n * positions + p, live, other=1.0))
        total += tl.load(top + image + n * positions + p, live, other=float("inf"))
        share = tl.exp2(_logits(x, q * LOG2E, BJ, J, CAST, P) - total[:, None])
        gain = tl.dot(x, tl.trans(g), input_precision=P)
        d_x = tl.dot(share.to(CAST), g, input_precision=P)
        mean = tl.sum(x.to(tl.float32) * d_x, 1)
        d_logit = (share * (gain - mean[:, None])).to(CAST)
        d_x = tl.dot(d_logit, q.to(CAST), d_x, input_precision=P)
        to_query = tl.dot(tl.trans(d_logit), x, to_query, input_precision=P)
        tl.store(d_poses + x_at, d_x, x_mask)
    tl.store(d_query + part * (tl.num_programs(0) * J * D) + q_at, to_query, q_mask)


def options(kernel: str, poses: Tensor, query: Tensor) -> dict[str, Any]:
    parents, dim = query.shape[2:]
    wide = max(16, pow2(parents))
    # measured on an H200: more positions or other warps took longer; 64 take up to 70 KB
    many = 64 if wide <= 128 and shared_memory() >= 70_144 else 32
    forward = kernel == "attend"
    warps = 4 if forward or poses.element_size() == 4 else 2
    return {
        **arithmetic(poses), "J": parents, "N": query.shape[1], "D": dim,
        "BP": many, "BJ": wide, "BD": max(16, pow2(dim)),
        "num_warps": warps, "num_stages": 3 if forward else 2,
    }  # fmt: skip


def _launch(kernel: str, poses: Tensor, query: Tensor) -> tuple[dict[str, Any], tuple[int, ...]]:
    batch, positions, types, _ = poses.shape
    o = options(kernel, poses, query)
    ranges, o["CHUNK"] = split(cdiv(positions, o["BP"]), batch * types, poses.device)
    return o, (batch * types, ranges)


def forward(poses: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
    """poses [B,P,N,D], query [B,N,J,D] float32 -> sums [B,N,J,D]; top and mass [2,B,N,P]"""
    batch, positions, types, _ = poses.shape
    o, grid = _launch("attend", poses, query)
    sums = query.new_empty((grid[1], *query.shape))
    stats = query.new_empty((2, batch, types, positions))
    attend[grid](poses, query, sums, *stats, positions, **o)
    return total(sums), stats


def backward(grad: Tensor, poses: Tensor, query: Tensor, stats: Tensor) -> tuple[Tensor, Tensor]:
    o, grid = _launch("attend_backward", poses, query)
    d_poses, d_query = torch.empty_like(poses), query.new_empty((grid[1], *query.shape))
    attend_backward[grid](poses, query, *stats, grad, d_poses, d_query, poses.shape[1], **o)
    return d_poses, total(d_query)
