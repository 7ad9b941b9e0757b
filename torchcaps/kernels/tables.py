"""Gradients of large layers of vectors with dot scores, in three kernels without atomics.

`attention.backward_kernel` makes all gradients at once, and adds up those of transforms and queries
with atomics. Here one kernel writes the shares and the gradients of the logits as tables, and two
others read them as they sum over children or rows:

    to_children    d(poses) and the tables [J,C,rows]
    to_queries     d(query_j) = sum over children of (d(logit) * x) W
    to_transforms  d(W) = sum over rows of x^T (share * d(sums_j) + d(logit) * query_j)

Each program owns what it writes, so the result has the same bits every time. With few parents the
tables cost more than the atomics (docs/lab-notes/log.md).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcaps.kernels.common import (
    LOG2E,
    Shape,
    Tile,
    arithmetic,
    as_left,
    cdiv,
    child_block,
    children,
    columns,
    dot_score,
    left_order,
    load_children,
    load_rows,
    narrower,
    over_poses,
    pow2,
    shared_memory,
    split,
    stages,
    to_poses,
    total,
    transform,
    two_terms,
)
from torchcaps.kernels.ops import Inputs, Needs

MAX_BYTES = 1 << 30
"""Largest size of the two tables; above it one kernel makes all gradients."""
MANY = 32
"""A dense layer needs more parents than this for the tables to pay."""


@triton.jit
def to_children(
    poses, weight, query, lse, grad1, d_poses, shares, d_logits,
    rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    I: tl.constexpr, J: tl.constexpr, C: tl.constexpr, WI: tl.constexpr,
    KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    CL: tl.constexpr, DL: tl.constexpr, CAST: tl.constexpr, P: tl.constexpr,
    TO_POSES: tl.constexpr, TO_SHARES: tl.constexpr, TO_LOGITS: tl.constexpr,
):  # fmt: skip
    """Gradients of the children of each window [rows,C,D], and the tables. Grid: row blocks, child
    blocks.
    """
    m, p, row3, e, q_at, q_mask = load_rows(rows, J, 1, E, 1, BM, BE)
    lane, d = columns(tl.arange(0, BC * BD), BD, CL, DL)
    base = tl.program_id(1) * BC
    c = base + lane
    c3 = base + child_block(BC, CL)
    x = load_children(
        poses, m, p, base, lane, d, rows, C, H, W, HO, WO, I, KS, STRIDE, PAD, 1, D, BC
    )
    t_at = (transform(c, C, WI) * (J * D * E) + d * E)[None, :] + e[:, None]
    t_mask = ((c < C) & (d < D))[None, :] & (e < E)[:, None]
    mask3 = (row3 < rows) & (c3 < C)
    denominator = tl.load(lse + row3.to(tl.int64) * C + c3, mask3, other=float("inf"))
    mean = tl.zeros((BM, BC // CL, CL), tl.float32)
    whole = tl.zeros((BM, BC // CL, CL), tl.float32)
    for j in range(J):
        wt = tl.load(weight + t_at + j * (D * E), t_mask, other=0.0).to(CAST)
        s = tl.load(grad1 + q_at + j * E, q_mask, other=0.0).to(CAST)
        d_share = over_poses(x * tl.dot(s, wt, input_precision=P), BM, 1, BC, BD, CL, DL)
        high, low = two_terms(tl.load(query + q_at + j * E, q_mask, other=0.0), CAST)
        logit = over_poses(x * dot_score(high, low, wt, CAST, P), BM, 1, BC, BD, CL, DL)
        share = tl.exp2(logit * LOG2E - denominator)
        mean += share * d_share
        whole += share
    # shares sum to one but for rounding, which would leave a gradient where there is none
    mean /= tl.maximum(whole, 1e-30)
    d_x = tl.zeros((BM, BC * BD), tl.float32)
    for j in range(J):
        wt = tl.load(weight + t_at + j * (D * E), t_mask, other=0.0).to(CAST)
        s = tl.load(grad1 + q_at + j * E, q_mask, other=0.0).to(CAST)
        h = tl.dot(s, wt, input_precision=P)
        high, low = two_terms(tl.load(query + q_at + j * E, q_mask, other=0.0), CAST)
        g = dot_score(high, low, wt, CAST, P)
        share = tl.exp2(over_poses(x * g, BM, 1, BC, BD, CL, DL) * LOG2E - denominator)
        d_logit = share * (over_poses(x * h, BM, 1, BC, BD, CL, DL) - mean)
        at = (c3.to(tl.int64) + j * C) * rows + row3
        if TO_SHARES:
            tl.store(shares + at, share, mask3)
        if TO_LOGITS:
            tl.store(d_logits + at, d_logit, mask3)
        if TO_POSES:
            d_x += to_poses(share, BM, 1, BC, BD, CL, DL) * h
            d_x += to_poses(d_logit, BM, 1, BC, BD, CL, DL) * g
    if TO_POSES:
        to = d_poses + (m.to(tl.int64) * C)[:, None] * D + (c * D + d)[None, :]
        tl.store(to, d_x, (m < rows)[:, None] & ((c < C) & (d < D))[None, :])


@triton.jit
def to_queries(
    poses, weight, d_logits, d_query,
    rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    I: tl.constexpr, J: tl.constexpr, C: tl.constexpr, WI: tl.constexpr,
    KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    CL: tl.constexpr, DL: tl.constexpr, CAST: tl.constexpr, P: tl.constexpr,
    JB: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Gradients of the queries. Grid: row blocks, parents / JB, ranges of children."""
    m, p, row3, e, q_at, q_mask = load_rows(rows, J, 1, E, 1, BM, BE)
    first, part = tl.program_id(1) * JB, tl.program_id(2)
    cn, d = columns(tl.arange(0, BC * BD), BD, CL, DL)
    cl, dk = columns(left_order(tl.arange(0, BC * BD), CAST), BD, CL, DL)
    totals = ()
    for k in tl.static_range(JB):
        totals = totals + (tl.zeros((BM, BE), tl.float32),)
    for step in range(CHUNK):
        base = (part * CHUNK + step) * BC
        x = load_children(
            poses, m, p, base, cn, d, rows, C, H, W, HO, WO, I, KS, STRIDE, PAD, 1, D, BC
        )
        c3, ck = base + child_block(BC, CL), base + cl
        w_at = (transform(ck, C, WI) * (J * D * E) + dk * E)[:, None] + e[None, :]
        w_mask = ((ck < C) & (dk < D))[:, None] & (e < E)[None, :]
        new_totals = ()
        for k in tl.static_range(JB):
            j = first + k
            w = tl.load(weight + w_at + j * (D * E), w_mask & (j < J), other=0.0).to(CAST)
            d_logit = tl.load(
                d_logits + (c3.to(tl.int64) + j * C) * rows + row3,
                (row3 < rows) & (c3 < C) & (j < J), other=0.0,
            ).to(tl.float32)  # fmt: skip
            scored = (x * to_poses(d_logit, BM, 1, BC, BD, CL, DL)).to(CAST)
            scored = as_left(scored, BM, BC * BD, CAST)
            new_totals = new_totals + (tl.dot(scored, w, totals[k], input_precision=P),)
        totals = new_totals
    for k in tl.static_range(JB):
        to = d_query + part.to(tl.int64) * rows * (J * E) + q_at + (first + k) * E
        tl.store(to, totals[k], q_mask & (first + k < J))


@triton.jit
def _over_entries(share, BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr):
    """Repeat each child's share for the entries of its pose. [BC,BM] -> [BC*BD,BM]"""
    return tl.reshape(tl.broadcast_to(share[:, None, :], (BC, BD, BM)), (BC * BD, BM))


@triton.jit
def to_transforms(
    poses, query, grad1, shares, d_logits, d_weight,
    rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    I: tl.constexpr, J: tl.constexpr, C: tl.constexpr, WI: tl.constexpr,
    KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    CAST: tl.constexpr, P: tl.constexpr, JB: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Gradients of the transforms. Grid: blocks of transforms, parents / JB, ranges of rows.

    Children that share a transform count as separate rows. Tiles have their rows last, as the
    product's left operand needs them.
    """
    GROUPS: tl.constexpr = C // WI
    base, first, part = tl.program_id(0) * BC, tl.program_id(1) * JB, tl.program_id(2)
    n, e = tl.arange(0, BC * BD), tl.arange(0, BE)
    d, lane = (n % BD)[:, None], (n // BD)[:, None]
    lane3 = tl.arange(0, BC)[:, None]
    totals = ()
    for k in tl.static_range(JB):
        totals = totals + (tl.zeros((BC * BD, BE), tl.float32),)
    for step in range(CHUNK):
        line = (part * CHUNK + step) * BM + tl.arange(0, BM)
        row, group = line // GROUPS, (line % GROUPS)[None, :]
        live = row < rows
        at, inside = children(
            row[None, :], base, lane + group * WI, rows, C, H, W, HO, WO, I, KS, STRIDE, PAD,
            BC if GROUPS == 1 else 0,
        )  # fmt: skip
        mask = inside & (base + lane < WI) & (d < D)
        x = tl.load(poses + at * D + d, mask, other=0.0).to(tl.float32)
        share_mask = live[None, :] & (base + lane3 < WI)
        table_at = (group * WI + base + lane3).to(tl.int64) * rows + row[None, :]
        s_at = (row * (J * E))[:, None] + e[None, :]
        s_mask = live[:, None] & (e < E)[None, :]
        new_totals = ()
        for k in tl.static_range(JB):
            j = first + k
            j_at = table_at + j.to(tl.int64) * C * rows
            s = tl.load(grad1 + s_at + j * E, s_mask & (j < J), other=0.0).to(CAST)
            share = tl.load(shares + j_at, share_mask & (j < J), other=0.0).to(tl.float32)
            weighed = (x * _over_entries(share, BM, BC, BD)).to(CAST)
            sums = tl.dot(weighed, s, totals[k], input_precision=P)
            q = tl.load(query + s_at + j * E, s_mask & (j < J), other=0.0).to(CAST)
            d_logit = tl.load(d_logits + j_at, share_mask & (j < J), other=0.0).to(tl.float32)
            scored = (x * _over_entries(d_logit, BM, BC, BD)).to(CAST)
            new_totals = new_totals + (tl.dot(scored, q, sums, input_precision=P),)
        totals = new_totals
    for k in tl.static_range(JB):
        at = (part.to(tl.int64) * WI + base + lane) * J + first + k
        mask = (base + lane < WI) & (d < D) & (e < E)[None, :] & (first + k < J)
        tl.store(d_weight + at * (D * E) + d * E + e[None, :], totals[k], mask)


TILES = {
    "to_children": Tile(64, 64, 4, 3),
    "to_queries": Tile(64, 64, 4, 1, 4),
    "to_transforms": Tile(64, 64, 4, 1, 4),
}
"""Tile of each kernel, as they were timed on an H200; no others were tried."""


def _sizes(kernel: str, shape: Shape, t: Tile, size: int) -> tuple[int, int, int]:
    """Children of a block, and bytes of a pipeline stage and of a product, for entries of `size`
    bytes.
    """
    wide, out = pow2(shape.in_dim), max(16, pow2(shape.out_dim))
    limit = shape.transforms if kernel == "to_transforms" else shape.children
    block = max(1, 16 // wide, min(pow2(limit), t.columns // wide))
    entries = block * wide
    weights, state, poses = size * entries * out, 4 * t.rows * out, size * t.rows * entries
    table = 4 * t.rows * block
    stage = {
        "to_children": weights + 2 * state,
        "to_queries": t.parents * (weights + table) + poses,
        "to_transforms": 2 * t.parents * (state + table) + poses,
    }[kernel]
    return block, stage, 4 * t.rows * entries


def options(kernel: str, shape: Shape, poses: Tensor) -> dict[str, Any]:
    size = poses.element_size()
    tiles = list(narrower(TILES[kernel]))
    fits = (n for n in tiles if max(_sizes(kernel, shape, n, size)) <= shared_memory())
    t = next(fits, tiles[-1])
    block, stage, product = _sizes(kernel, shape, t, size)
    chosen = {n: v for n, v in shape.constants().items() if n != "R"}
    chosen |= {
        **arithmetic(poses),
        "BM": t.rows,
        "BC": block,
        "BD": pow2(shape.in_dim),
        "BE": max(16, pow2(shape.out_dim)),
        "num_warps": t.warps,
        "num_stages": stages(t.stages, stage, product),
    }
    if kernel != "to_transforms":
        chosen |= {"CL": min(4, block), "DL": min(2, chosen["BD"])}
    if kernel != "to_children":
        chosen["JB"] = min(t.parents, pow2(shape.parents))
    return chosen


def pays(shape: Shape, score: str, inputs: Inputs) -> bool:
    """True where the tables are worth their memory: vectors in windows, or many parents."""
    entries = shape.parents * shape.children * shape.rows
    return (
        score == "dot"
        and shape.pose_rows == 1
        and inputs.activations is None
        and (shape.parents > MANY or not shape.covers)
        and 2 * entries * inputs.poses.element_size() <= MAX_BYTES
    )


def backward(shape: Shape, grad1: Tensor, lse: Tensor, inputs: Inputs, needs: Needs) -> Inputs:
    """Gradients of poses, transforms and queries; empty for those that are not needed."""
    poses, weight, query = inputs.poses, inputs.weight, inputs.query
    assert query is not None
    f32, new = torch.float32, poses.new_empty
    tables = (shape.parents, shape.children, shape.rows)
    o = options("to_children", shape, poses)
    kind = f32 if o["CAST"] == tl.float32 else poses.dtype
    to_logits = needs.weight or needs.query
    shares = new(tables if needs.weight else 0, dtype=kind)
    d_logits = new(tables if to_logits else 0, dtype=kind)
    d_poses = new((shape.rows, shape.children, shape.in_dim) if needs.poses else 0, dtype=f32)
    to_children[(cdiv(shape.rows, o["BM"]), cdiv(shape.children, o["BC"]))](
        poses, weight, query, lse, grad1, d_poses, shares, d_logits, shape.rows, **o,
        TO_POSES=needs.poses, TO_SHARES=needs.weight, TO_LOGITS=to_logits,
    )  # fmt: skip
    d_query = d_weight = new(0, dtype=f32)
    if needs.query:
        o = options("to_queries", shape, poses)
        grid = cdiv(shape.rows, o["BM"]), cdiv(shape.parents, o["JB"])
        ranges, o["CHUNK"] = split(
            cdiv(shape.children, o["BC"]), grid[0] * grid[1], poses.device, max_ranges=32
        )
        d_queries = new((ranges, *query.shape), dtype=f32)
        to_queries[(*grid, ranges)](poses, weight, d_logits, d_queries, shape.rows, **o)
        d_query = total(d_queries)
    if needs.weight:
        o = options("to_transforms", shape, poses)
        lines = shape.rows * (shape.children // shape.transforms)
        grid = cdiv(shape.transforms, o["BC"]), cdiv(shape.parents, o["JB"])
        ranges, o["CHUNK"] = split(cdiv(lines, o["BM"]), grid[0] * grid[1], poses.device)
        d_weights = new((ranges, *weight.shape), dtype=f32)
        to_transforms[(*grid, ranges)](
            poses, query, grad1, shares, d_logits, d_weights, shape.rows, **o
        )
        d_weight = total(d_weights)
    folded = shape.fold(d_poses[None], poses.dtype) if needs.poses else d_poses
    return Inputs(folded, d_weight, query=d_query)
