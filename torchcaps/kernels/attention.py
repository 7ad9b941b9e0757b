"""The fused step of routings whose scores are linear in a vector vote, in Triton.

Neither votes nor tensors of their size are formed. For parent j, with the children's poses x and
transforms W [children x D, E], everything is a product with W or with its transpose:

    G     = query_j W^T                    (self-routing: its route weights in place of G)
    logit = sum over the pose of x * G     share = activation * softmax over parents of logit
    sums_j = (share * x) W                 d(x) = sum_j share * H + d(logit) * G,  H = d(sums_j) W^T
    d(query_j) = (d(logit) * x) W          d(W) = x^T (share * d(sums_j) + d(logit) * query_j)

`common.columns` orders the columns of a tile so that a sum over pose entries stays inside a thread;
softmax over parents is a loop. Masks pad sizes that are not powers of two.
"""

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
from torchcaps.kernels.plans import sizes, tile

UNIFORM = tl.constexpr(0)
DOT = tl.constexpr(1)
LINEAR = tl.constexpr(2)


@triton.jit
def _route_logit(
    x, route_weight, route_bias, wn, w3, p, d, j, J: tl.constexpr, R: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, RP: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
    CL: tl.constexpr, DL: tl.constexpr,
):  # fmt: skip
    """G of self-routing, the same for all rows, and its logits. Its loads have no mask of children,
    whose numbers wn and w3 are modulo the transforms.
    """
    if R == 1:
        g = tl.load(route_weight + (wn * D + d) * J + j, d < D, other=0.0).to(tl.float32)[None, :]
    else:
        at = (wn[None, :] * (R * D) + (p * D)[:, None] + d[None, :]) * J + j
        g = tl.load(route_weight + at, (p < R)[:, None] & (d < D)[None, :], other=0.0)
        g = g.to(tl.float32)
    bias = tl.load(route_bias + w3 * J + j).to(tl.float32)
    return g, over_poses(x * g, BM, RP, BC, BD, CL, DL) + bias


@triton.jit
def stats(
    poses, weight, query, route_weight, route_bias, lse,
    rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    I: tl.constexpr, J: tl.constexpr, C: tl.constexpr, WI: tl.constexpr,
    KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, RP: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    CL: tl.constexpr, DL: tl.constexpr, SCORE: tl.constexpr, CAST: tl.constexpr,
    P: tl.constexpr,
):  # fmt: skip
    """Logarithm to base 2 of every child's softmax denominator. Grid: row blocks, child blocks."""
    m, p, row3, e, q_at, q_mask = load_rows(rows, J, R, E, RP, BM, BE)
    lane, d = columns(tl.arange(0, BC * BD), BD, CL, DL)
    base = tl.program_id(1) * BC
    c = base + lane
    c3 = base + child_block(BC, CL)
    x = load_children(
        poses, m, p, base, lane, d, rows, C, H, W, HO, WO, I, KS, STRIDE, PAD, R, D, BC
    )
    wn = transform(c, C, WI)
    t_at = (wn * (J * D * E) + d * E)[None, :] + e[:, None]
    t_mask = ((c < C) & (d < D))[None, :] & (e < E)[:, None]
    top = tl.full((BM // RP, BC // CL, CL), -float("inf"), tl.float32)
    total = tl.zeros((BM // RP, BC // CL, CL), tl.float32)
    for j in range(J):
        if SCORE == DOT:
            q = tl.load(query + q_at + j * (R * E), q_mask, other=0.0)
            wt = tl.load(weight + t_at + j * (D * E), t_mask, other=0.0).to(CAST)
            high, low = two_terms(q, CAST)
            g = dot_score(high, low, wt, CAST, P)
            logit = over_poses(x * g, BM, RP, BC, BD, CL, DL)
        else:
            g, logit = _route_logit(
                x, route_weight, route_bias, c % WI, c3 % WI, p, d, j, J, R, D,
                BM, RP, BC, BD, CL, DL,
            )  # fmt: skip
        higher = tl.maximum(top, logit * LOG2E)
        total = total * tl.exp2(top - higher) + tl.exp2(logit * LOG2E - higher)
        top = higher
    tl.store(lse + row3.to(tl.int64) * C + c3, top + tl.log2(total), (row3 < rows) & (c3 < C))


@triton.jit
def gather(
    poses, weight, activations, query, route_weight, route_bias, lse, sum0, sum1, coupling,
    rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    I: tl.constexpr, J: tl.constexpr, C: tl.constexpr, WI: tl.constexpr,
    KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, RP: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    CL: tl.constexpr, DL: tl.constexpr, SCORE: tl.constexpr, CAST: tl.constexpr,
    P: tl.constexpr,
    JB: tl.constexpr, CHUNK: tl.constexpr, WEIGHTED: tl.constexpr, WITH_COUPLING: tl.constexpr,
):  # fmt: skip
    """Sums over children of one range. Grid: row blocks, parents / JB, ranges of CHUNK blocks."""
    m, p, row3, e, q_at, q_mask = load_rows(rows, J, R, E, RP, BM, BE)
    first, split = tl.program_id(1) * JB, tl.program_id(2)
    cn, d = columns(tl.arange(0, BC * BD), BD, CL, DL)
    cl, dk = columns(left_order(tl.arange(0, BC * BD), CAST), BD, CL, DL)
    qs, sums, masses = (), (), ()
    for k in tl.static_range(JB):
        sums = sums + (tl.zeros((BM, BE), tl.float32),)
        masses = masses + (tl.zeros((BM // RP, BC // CL, CL), tl.float32),)
        if SCORE == DOT:
            q_at_k = q_at + (first + k) * (R * E)
            q = tl.load(query + q_at_k, q_mask & (first + k < J), other=0.0)
            qs = qs + (two_terms(q, CAST),)
    for step in range(CHUNK):
        base = (split * CHUNK + step) * BC
        c = base + cn
        c3 = base + child_block(BC, CL)
        x = load_children(
            poses, m, p, base, cn, d, rows, C, H, W, HO, WO, I, KS, STRIDE, PAD, R, D, BC
        )
        if SCORE != UNIFORM:
            total = tl.load(
                lse + row3.to(tl.int64) * C + c3, (row3 < rows) & (c3 < C), other=float("inf")
            )
        if WEIGHTED:
            at3, inside3 = children(
                row3, base, child_block(BC, CL), rows, C, H, W, HO, WO, I, KS, STRIDE, PAD, BC
            )
            active = tl.load(activations + at3, inside3, other=0.0).to(tl.float32)
        # each order of the transforms has a load of its own, which goes straight to its product's
        # operand ahead of its use
        ck = base + cl
        w_at = (transform(ck, C, WI) * (J * D * E) + dk * E)[:, None] + e[None, :]
        w_mask = ((ck < C) & (dk < D))[:, None] & (e < E)[None, :]
        wn = transform(c, C, WI)
        t_at = (wn * (J * D * E) + d * E)[None, :] + e[:, None]
        t_mask = ((c < C) & (d < D))[None, :] & (e < E)[:, None]
        new_sums, new_masses = (), ()
        for k in tl.static_range(JB):
            w = tl.load(
                weight + w_at + (first + k) * (D * E), w_mask & (first + k < J), other=0.0
            ).to(CAST)
            if SCORE == UNIFORM:
                share = tl.zeros((BM // RP, BC // CL, CL), tl.float32) + 1.0 / J
            elif SCORE == DOT:
                wt = tl.load(
                    weight + t_at + (first + k) * (D * E), t_mask & (first + k < J), other=0.0
                ).to(CAST)
                g = dot_score(qs[k][0], qs[k][1], wt, CAST, P)
                share = tl.exp2(over_poses(x * g, BM, RP, BC, BD, CL, DL) * LOG2E - total)
            else:
                g, logit = _route_logit(
                    x, route_weight, route_bias, c % WI, c3 % WI, p, d,
                    tl.minimum(first + k, J - 1), J, R, D, BM, RP, BC, BD, CL, DL,
                )  # fmt: skip
                share = tl.exp2(logit * LOG2E - total)
            if WITH_COUPLING:
                tl.store(
                    coupling + (row3.to(tl.int64) * J + first + k) * C + c3, share,
                    (row3 < rows) & (c3 < C) & (first + k < J),
                )  # fmt: skip
            if WEIGHTED:
                share *= active
                new_masses = new_masses + (masses[k] + share,)
            weighed = (x * to_poses(share, BM, RP, BC, BD, CL, DL)).to(CAST)
            weighed = as_left(weighed, BM, BC * BD, CAST)
            new_sums = new_sums + (tl.dot(weighed, w, sums[k], input_precision=P),)
        sums = new_sums
        if WEIGHTED:
            masses = new_masses
    for k in tl.static_range(JB):
        to = sum1 + split * rows * (J * R * E) + q_at + (first + k) * (R * E)
        tl.store(to, sums[k], q_mask & (first + k < J))
        if WEIGHTED:
            row = tl.program_id(0) * (BM // RP) + tl.arange(0, BM // RP)
            mass = tl.sum(tl.sum(masses[k], 2), 1)
            to0 = sum0 + (split * rows + row) * J + first + k
            tl.store(to0, mass, (row < rows) & (first + k < J))


@triton.jit
def backward_kernel(
    poses, weight, activations, query, route_weight, route_bias, lse, grad0, grad1,
    d_poses, d_weight, expected_grad, d_query, d_route_weight, d_route_bias,
    weight_stride, query_stride, weight_slots, query_slots,
    rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    I: tl.constexpr, J: tl.constexpr, C: tl.constexpr, WI: tl.constexpr,
    KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, RP: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    CL: tl.constexpr, DL: tl.constexpr, SCORE: tl.constexpr, CAST: tl.constexpr,
    P: tl.constexpr, WEIGHTED: tl.constexpr, TO_POSES: tl.constexpr, TO_WEIGHT: tl.constexpr,
    TO_QUERY: tl.constexpr,
):  # fmt: skip
    """All gradients. Grid: row blocks, child blocks.

    A program has all parents of its children, so it writes the whole gradient of their poses. Row
    blocks add up the gradient of the transforms, child blocks that of the queries, each in a slot
    (one slot per block if the result must be deterministic). Each window has a gradient of its
    children [rows,C,R,D]. `expected_grad` is sum_j share
    d(share): the gradient of the activation, and what the softmax backward subtracts.
    """
    m, p, row3, e, q_at, q_mask = load_rows(rows, J, R, E, RP, BM, BE)
    lane, d = columns(tl.arange(0, BC * BD), BD, CL, DL)
    base = tl.program_id(1) * BC
    c = base + lane
    c3 = base + child_block(BC, CL)
    x = load_children(
        poses, m, p, base, lane, d, rows, C, H, W, HO, WO, I, KS, STRIDE, PAD, R, D, BC
    )
    t_at = (transform(c, C, WI) * (J * D * E) + d * E)[None, :] + e[:, None]
    t_mask = ((c < C) & (d < D))[None, :] & (e < E)[:, None]
    mask3 = (row3 < rows) & (c3 < C)
    active = 1.0
    if WEIGHTED:
        at3, inside3 = children(
            row3, base, child_block(BC, CL), rows, C, H, W, HO, WO, I, KS, STRIDE, PAD, BC
        )
        active = tl.load(activations + at3, inside3, other=0.0).to(tl.float32)
    if SCORE != UNIFORM:
        total = tl.load(lse + row3.to(tl.int64) * C + c3, mask3, other=float("inf"))
    ck, dk = columns(left_order(tl.arange(0, BC * BD), CAST), BD, CL, DL)
    ck += base
    w_at = (transform(ck, C, WI) * (J * D * E) + dk * E)[:, None] + e[None, :]
    w_mask = ((ck < C) & (dk < D))[:, None] & (e < E)[None, :]
    uniform = 1.0 / J
    mean = tl.zeros((BM // RP, BC // CL, CL), tl.float32)
    whole = tl.zeros((BM // RP, BC // CL, CL), tl.float32)
    if SCORE != UNIFORM or WEIGHTED:
        for j in range(J):
            wt = tl.load(weight + t_at + j * (D * E), t_mask, other=0.0).to(CAST)
            s = tl.load(grad1 + q_at + j * (R * E), q_mask, other=0.0).to(CAST)
            h = tl.dot(s, wt, input_precision=P)
            d_share = over_poses(x * h, BM, RP, BC, BD, CL, DL)
            if WEIGHTED:
                d_share += tl.load(grad0 + row3 * J + j, row3 < rows, other=0.0)
            if SCORE == DOT:
                q = tl.load(query + q_at + j * (R * E), q_mask, other=0.0)
                high, low = two_terms(q, CAST)
                g = dot_score(high, low, wt, CAST, P)
                share = tl.exp2(over_poses(x * g, BM, RP, BC, BD, CL, DL) * LOG2E - total)
            elif SCORE == LINEAR:
                g, logit = _route_logit(
                    x, route_weight, route_bias, c % WI, c3 % WI, p, d, j, J, R, D,
                    BM, RP, BC, BD, CL, DL,
                )  # fmt: skip
                share = tl.exp2(logit * LOG2E - total)
            else:
                share = uniform
            mean += share * d_share
            whole += share
        # shares sum to one but for rounding, which would leave a gradient where there is none
        mean /= tl.maximum(whole, 1e-30)
        if WEIGHTED:
            tl.store(expected_grad + row3.to(tl.int64) * C + c3, mean, mask3)
    d_x = tl.zeros((BM, BC * BD), tl.float32)
    slot_w = (tl.program_id(0) % weight_slots).to(tl.int64)
    slot_q = (tl.program_id(1) % query_slots).to(tl.int64)
    for j in range(J):
        wt = tl.load(weight + t_at + j * (D * E), t_mask, other=0.0).to(CAST)
        s = tl.load(grad1 + q_at + j * (R * E), q_mask, other=0.0).to(CAST)
        h = tl.dot(s, wt, input_precision=P)
        if SCORE == UNIFORM:
            share = uniform * active
            if WEIGHTED:
                weighed = to_poses(share, BM, RP, BC, BD, CL, DL)
            else:
                weighed = uniform
            if TO_POSES:
                d_x += weighed * h
            if TO_WEIGHT:
                d_w = tl.dot(tl.trans(s), (weighed * x).to(CAST), input_precision=P)
        else:
            d_share = over_poses(x * h, BM, RP, BC, BD, CL, DL)
            if WEIGHTED:
                d_share += tl.load(grad0 + row3 * J + j, row3 < rows, other=0.0)
            if SCORE == DOT:
                q = tl.load(query + q_at + j * (R * E), q_mask, other=0.0)
                high, low = two_terms(q, CAST)
                g = dot_score(high, low, wt, CAST, P)
                share = tl.exp2(over_poses(x * g, BM, RP, BC, BD, CL, DL) * LOG2E - total)
            else:
                g, logit = _route_logit(
                    x, route_weight, route_bias, c % WI, c3 % WI, p, d, j, J, R, D,
                    BM, RP, BC, BD, CL, DL,
                )  # fmt: skip
                share = tl.exp2(logit * LOG2E - total)
            share *= active
            d_logit = share * (d_share - mean)
            weighed = to_poses(share, BM, RP, BC, BD, CL, DL)
            scored = to_poses(d_logit, BM, RP, BC, BD, CL, DL)
            if TO_POSES:
                d_x += weighed * h + scored * g
            x_scored = (scored * x).to(CAST)
            if TO_WEIGHT:
                d_w = tl.dot(tl.trans(s), (weighed * x).to(CAST), input_precision=P)
                if SCORE == DOT:
                    d_w = tl.dot(tl.trans(high), x_scored, d_w, input_precision=P)
            if TO_QUERY:
                w = tl.load(weight + w_at + j * (D * E), w_mask, other=0.0).to(CAST)
                d_q = tl.dot(as_left(x_scored, BM, BC * BD, CAST), w, input_precision=P)
                to_q = d_query + slot_q * query_stride + q_at + j * (R * E)
                tl.atomic_add(to_q, d_q, q_mask, sem="relaxed")
            if SCORE == LINEAR:
                if R == 1:
                    to_r = d_route_weight + slot_w * (WI * R * D * J) + (c % WI * D + d) * J + j
                    tl.atomic_add(to_r, tl.sum(scored * x, 0), (c < C) & (d < D), sem="relaxed")
                else:
                    pr = tl.arange(0, RP)[:, None]
                    to_r = (c % WI * (R * D) + d)[None, :] + pr * D
                    to_r = d_route_weight + slot_w * (WI * R * D * J) + to_r * J + j
                    over_rows = tl.sum(tl.reshape(scored * x, (BM // RP, RP, BC * BD)), 0)
                    r_mask = (pr < R) & ((c < C) & (d < D))[None, :]
                    tl.atomic_add(to_r, over_rows, r_mask, sem="relaxed")
                to_b = d_route_bias + slot_w * (WI * J) + c3 % WI * J + j
                bias = tl.sum(d_logit, 0)[None, :, :]
                tl.atomic_add(to_b, bias, c3 < C, sem="relaxed")
        if TO_WEIGHT:
            to_w = d_weight + slot_w * weight_stride + t_at + j * (D * E)
            tl.atomic_add(to_w, d_w, t_mask, sem="relaxed")
    if TO_POSES:
        first = d_poses + (tl.program_id(0) * (BM // RP)).to(tl.int64) * (C * R * D)
        at = (tl.arange(0, BM) // RP * (C * R * D) + p * D)[:, None] + (c * (R * D) + d)[None, :]
        mask = ((m < rows) & (p < R))[:, None] & ((c < C) & (d < D))[None, :]
        tl.store(first + at, d_x, mask)


SCORES = {"uniform": 0, "dot": 1, "linear": 2}


def options(shape: Shape, t: Tile, score: str, poses: Tensor) -> dict:
    size = poses.element_size()
    tiles = list(narrower(t))
    t = next((n for n in tiles if max(sizes(shape, n, size)) <= shared_memory()), tiles[-1])
    block, stage, product = sizes(shape, t, size)
    return {
        **shape.constants(),
        **arithmetic(poses),
        "SCORE": SCORES[score],
        "RP": pow2(shape.pose_rows),
        "BM": t.rows,
        "BD": pow2(shape.in_dim),
        "BC": block,
        "BE": max(16, pow2(shape.out_dim)),
        "CL": min(4, block),
        "DL": min(2, pow2(shape.in_dim)),
        "num_warps": t.warps,
        "num_stages": stages(t.stages, stage, product),
    }


def forward(
    shape: Shape,
    score: str,
    inputs: Inputs,
    with_coupling: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """-> sums of shares [rows,J], of votes [rows,J,R,E] and of squares (empty); log-denominators;
    coupling

    coupling [rows,J,C], in the order in which the kernel writes it
    """
    poses, weight = inputs[:2]
    f32, new = torch.float32, poses.new_empty
    lse = new((0,) if score == "uniform" else (shape.rows, shape.children), dtype=f32)
    score_inputs = (inputs.query, inputs.route_weight, inputs.route_bias, lse)
    if score != "uniform":
        o = options(shape, tile(shape, score, "stats"), score, poses)
        grid = (cdiv(shape.rows, o["BM"] // o["RP"]), cdiv(shape.children, o["BC"]))
        stats[grid](poses, weight, *score_inputs, shape.rows, **o)
    t = tile(shape, score, "gather")
    o = options(shape, t, score, poses)
    parents = min(t.parents, shape.parents)
    rows, groups = cdiv(shape.rows, o["BM"] // o["RP"]), cdiv(shape.parents, parents)
    splits, chunk = split(cdiv(shape.children, o["BC"]), rows * groups, poses.device, max_ranges=32)
    weighted = inputs.activations is not None
    sum1 = new((splits, shape.rows, shape.parents, shape.pose_rows, shape.out_dim), dtype=f32)
    sum0 = new((splits, shape.rows, shape.parents) if weighted else (1, 0), dtype=f32)
    table = (shape.rows, shape.parents, shape.children)
    coupling = new(table if with_coupling else (0,), dtype=f32)
    o |= {"JB": parents, "CHUNK": chunk, "WEIGHTED": weighted, "WITH_COUPLING": with_coupling}
    gather[(rows, groups, splits)](
        *inputs[:3], *score_inputs, sum0, sum1, coupling, shape.rows, **o
    )
    return total(sum0), total(sum1), new(0, dtype=f32), lse, coupling


def backward(
    shape: Shape,
    score: str,
    deterministic: bool,
    grads: tuple[Tensor, Tensor],
    lse: Tensor,
    inputs: Inputs,
    needs: Needs,
) -> Inputs:
    """Gradients of the inputs; empty for inputs that are None or need no gradient."""
    poses, weight, activations, query, _, _, route_weight, route_bias = inputs
    o = options(shape, tile(shape, score, "backward"), score, poses)
    row_blocks = cdiv(shape.rows, o["BM"] // o["RP"])
    blocks = cdiv(shape.children, o["BC"])
    weight_slots, query_slots = (row_blocks, blocks) if deterministic else (1, 1)
    f32, new = torch.float32, poses.new_empty
    to_query = query is not None and needs.query

    def slots(number: int, like: Tensor | None) -> Tensor:
        return poses.new_zeros((1, 0) if like is None else (number, *like.shape), dtype=f32)

    d_poses = new((shape.rows, shape.children, poses.shape[-1]) if needs.poses else 0, dtype=f32)
    d_weight = slots(weight_slots, weight if needs.weight else None)
    d_query = slots(query_slots, query if to_query else None)
    d_route, d_bias = slots(weight_slots, route_weight), slots(weight_slots, route_bias)
    weighted = activations is not None
    expected_grad = new((shape.rows, shape.children) if weighted else (0,), dtype=f32)
    backward_kernel[(row_blocks, blocks)](
        poses, weight, activations, query, route_weight, route_bias, lse, *grads,
        d_poses, d_weight, expected_grad, d_query, d_route, d_bias,
        d_weight.stride(0), d_query.stride(0), weight_slots, query_slots, shape.rows,
        **o, WEIGHTED=weighted, TO_POSES=needs.poses, TO_WEIGHT=needs.weight, TO_QUERY=to_query,
    )  # fmt: skip
    return Inputs(
        shape.fold(d_poses[None], poses.dtype) if needs.poses else d_poses,
        total(d_weight),
        shape.fold(expected_grad[None]) if weighted else expected_grad,
        total(d_query),
        route_weight=total(d_route),
        route_bias=total(d_bias),
    )
