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
    left_order,
    narrower,
    over_poses,
    pow2,
    shared_memory,
    split,
    stages,
    to_poses,
    total,
    transform,
)
from torchcaps.kernels.ops import Inputs, Needs

UNIFORM = tl.constexpr(0)
DOT = tl.constexpr(1)
LINEAR = tl.constexpr(2)
KNOWN = tl.constexpr(3)


@triton.jit
def _load_children(
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
def _load_rows(
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
def _terms(q, CAST: tl.constexpr):
    """A query as two terms of the products' type; float32 is one term, and the second unused."""
    high = q.to(CAST)
    return high, (q - high.to(tl.float32)).to(CAST)


@triton.jit
def _score(high, low, wt, CAST: tl.constexpr, P: tl.constexpr):
    """G = query W^T. With one 16-bit term its error would grow with the logits."""
    g = tl.dot(high, wt, input_precision=P)
    if CAST != tl.float32:
        g = tl.dot(low, wt, g)
    return g


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
    m, p, row3, e, q_at, q_mask = _load_rows(rows, J, R, E, RP, BM, BE)
    lane, d = columns(tl.arange(0, BC * BD), BD, CL, DL)
    base = tl.program_id(1) * BC
    c = base + lane
    c3 = base + child_block(BC, CL)
    x = _load_children(
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
            high, low = _terms(q, CAST)
            g = _score(high, low, wt, CAST, P)
            logit = over_poses(x * g, BM, RP, BC, BD, CL, DL)
        else:
            g, logit = _route_logit(
                x, route_weight, route_bias, c % WI, c3 % WI, p, d, j, J, R, D,
                BM, RP, BC, BD, CL, DL,
            )  # fmt: skip
        higher = tl.maximum(top, logit * LOG2E)
        total = total * tl.exp2(top - higher) + tl.exp2(logit * LOG2E - higher)
        top = higher
    tl.store(lse + c3.to(tl.int64) * rows + row3, top + tl.log2(total), (row3 < rows) & (c3 < C))


@triton.jit
def gather(
    poses, weight, activations, query, route_weight, route_bias, lse, shares, sum0, sum1, coupling,
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
    m, p, row3, e, q_at, q_mask = _load_rows(rows, J, R, E, RP, BM, BE)
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
            qs = qs + (_terms(q, CAST),)
    for step in range(CHUNK):
        base = (split * CHUNK + step) * BC
        c = base + cn
        c3 = base + child_block(BC, CL)
        x = _load_children(
            poses, m, p, base, cn, d, rows, C, H, W, HO, WO, I, KS, STRIDE, PAD, R, D, BC
        )
        if SCORE == DOT or SCORE == LINEAR:
            total = tl.load(
                lse + c3.to(tl.int64) * rows + row3, (row3 < rows) & (c3 < C), other=float("inf")
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
                g = _score(qs[k][0], qs[k][1], wt, CAST, P)
                share = tl.exp2(over_poses(x * g, BM, RP, BC, BD, CL, DL) * LOG2E - total)
            elif SCORE == LINEAR:
                g, logit = _route_logit(
                    x, route_weight, route_bias, c % WI, c3 % WI, p, d,
                    tl.minimum(first + k, J - 1), J, R, D, BM, RP, BC, BD, CL, DL,
                )  # fmt: skip
                share = tl.exp2(logit * LOG2E - total)
            else:
                share = tl.load(
                    shares + (c3.to(tl.int64) + (first + k) * C) * rows + row3,
                    (row3 < rows) & (c3 < C) & (first + k < J), other=0.0,
                ).to(tl.float32)  # fmt: skip
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
def to_children(
    poses, weight, activations, query, route_weight, route_bias, lse, grad0, grad1,
    d_poses, shares, d_logits, expected_grad, d_route_weight, d_route_bias, num_slots,
    rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    I: tl.constexpr, J: tl.constexpr, C: tl.constexpr, WI: tl.constexpr,
    KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, RP: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    CL: tl.constexpr, DL: tl.constexpr, SCORE: tl.constexpr, CAST: tl.constexpr,
    P: tl.constexpr, WEIGHTED: tl.constexpr, TO_POSES: tl.constexpr, TO_SHARES: tl.constexpr,
    TO_LOGITS: tl.constexpr,
):  # fmt: skip
    """Gradients of the children of each window [rows,C,R,D], and tables [J,C,rows] of weighted
    shares and of the logits' gradients, for the kernels that sum over children or rows. Grid: row
    blocks, child blocks.

    A program has all parents of its children. `expected_grad` is sum_j share d(share): the gradient
    of the activation, and what the softmax backward subtracts.
    """
    m, p, row3, e, q_at, q_mask = _load_rows(rows, J, R, E, RP, BM, BE)
    lane, d = columns(tl.arange(0, BC * BD), BD, CL, DL)
    base = tl.program_id(1) * BC
    c = base + lane
    c3 = base + child_block(BC, CL)
    x = _load_children(
        poses, m, p, base, lane, d, rows, C, H, W, HO, WO, I, KS, STRIDE, PAD, R, D, BC
    )
    wn = transform(c, C, WI)
    t_at = (wn * (J * D * E) + d * E)[None, :] + e[:, None]
    t_mask = ((c < C) & (d < D))[None, :] & (e < E)[:, None]
    mask3 = (row3 < rows) & (c3 < C)
    active = 1.0
    if WEIGHTED:
        at3, inside3 = children(
            row3, base, child_block(BC, CL), rows, C, H, W, HO, WO, I, KS, STRIDE, PAD, BC
        )
        active = tl.load(activations + at3, inside3, other=0.0).to(tl.float32)
    if SCORE != UNIFORM:
        total = tl.load(lse + c3.to(tl.int64) * rows + row3, mask3, other=float("inf"))
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
                high, low = _terms(q, CAST)
                g = _score(high, low, wt, CAST, P)
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
    slot = (tl.program_id(0) % num_slots).to(tl.int64)
    if SCORE != UNIFORM or TO_POSES:
        for j in range(J):
            wt = tl.load(weight + t_at + j * (D * E), t_mask, other=0.0).to(CAST)
            s = tl.load(grad1 + q_at + j * (R * E), q_mask, other=0.0).to(CAST)
            h = tl.dot(s, wt, input_precision=P)
            if SCORE == UNIFORM:
                d_x += h
            else:
                d_share = over_poses(x * h, BM, RP, BC, BD, CL, DL)
                if WEIGHTED:
                    d_share += tl.load(grad0 + row3 * J + j, row3 < rows, other=0.0)
                if SCORE == DOT:
                    q = tl.load(query + q_at + j * (R * E), q_mask, other=0.0)
                    high, low = _terms(q, CAST)
                    g = _score(high, low, wt, CAST, P)
                    share = tl.exp2(over_poses(x * g, BM, RP, BC, BD, CL, DL) * LOG2E - total)
                else:
                    g, logit = _route_logit(
                        x, route_weight, route_bias, c % WI, c3 % WI, p, d, j, J, R, D,
                        BM, RP, BC, BD, CL, DL,
                    )  # fmt: skip
                    share = tl.exp2(logit * LOG2E - total)
                share *= active
                d_logit = share * (d_share - mean)
                table_at = (c3.to(tl.int64) + j * C) * rows + row3
                if TO_SHARES:
                    tl.store(shares + table_at, share, mask3)
                if TO_LOGITS:
                    tl.store(d_logits + table_at, d_logit, mask3)
                if TO_POSES:
                    d_x += to_poses(share, BM, RP, BC, BD, CL, DL) * h
                    d_x += to_poses(d_logit, BM, RP, BC, BD, CL, DL) * g
                if SCORE == LINEAR:
                    scored = to_poses(d_logit, BM, RP, BC, BD, CL, DL) * x
                    if R == 1:
                        to_r = d_route_weight + slot * (WI * R * D * J) + (c % WI * D + d) * J + j
                        tl.atomic_add(to_r, tl.sum(scored, 0), (c < C) & (d < D), sem="relaxed")
                    else:
                        pr = tl.arange(0, RP)[:, None]
                        to_r = (c % WI * (R * D) + d)[None, :] + pr * D
                        to_r = d_route_weight + slot * (WI * R * D * J) + to_r * J + j
                        over_rows = tl.sum(tl.reshape(scored, (BM // RP, RP, BC * BD)), 0)
                        r_mask = (pr < R) & ((c < C) & (d < D))[None, :]
                        tl.atomic_add(to_r, over_rows, r_mask, sem="relaxed")
                    to_b = d_route_bias + slot * (WI * J) + c3 % WI * J + j
                    bias = tl.sum(d_logit, 0)[None, :, :]
                    tl.atomic_add(to_b, bias, c3 < C, sem="relaxed")
    if TO_POSES:
        if SCORE == UNIFORM:
            d_x *= uniform
            if WEIGHTED:
                d_x *= to_poses(active, BM, RP, BC, BD, CL, DL)
        at = (m.to(tl.int64) * C)[:, None] * (R * D) + (c * (R * D) + d)[None, :] + (p * D)[:, None]
        mask = ((m < rows) & (p < R))[:, None] & ((c < C) & (d < D))[None, :]
        tl.store(d_poses + at, d_x, mask)


@triton.jit
def to_transforms(
    poses, activations, query, grad1, shares, d_logits, d_weight,
    rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    I: tl.constexpr, J: tl.constexpr, C: tl.constexpr, WI: tl.constexpr,
    KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, RP: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    SCORE: tl.constexpr, CAST: tl.constexpr, P: tl.constexpr, JB: tl.constexpr,
    CHUNK: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """Gradients of the transforms. Grid: blocks of transforms, parents / JB, ranges of rows.

    Children that share a transform count as separate rows. Tiles have their rows last, as the
    product's left operand needs them.
    """
    GROUPS: tl.constexpr = C // WI
    base, first, split = tl.program_id(0) * BC, tl.program_id(1) * JB, tl.program_id(2)
    n, e = tl.arange(0, BC * BD), tl.arange(0, BE)
    d, lane = (n % BD)[:, None], (n // BD)[:, None]
    lane3 = tl.arange(0, BC)[:, None]
    totals = ()
    for k in tl.static_range(JB):
        totals = totals + (tl.zeros((BC * BD, BE), tl.float32),)
    for step in range(CHUNK):
        line = (split * CHUNK + step) * BM + tl.arange(0, BM)
        p, row = line % RP, line // RP // GROUPS
        group = (line // RP % GROUPS)[None, :]
        live = row < rows
        at, inside = children(
            row[None, :], base, lane + group * WI, rows, C, H, W, HO, WO, I, KS, STRIDE, PAD,
            BC if GROUPS == 1 else 0,
        )  # fmt: skip
        mask = inside & (base + lane < WI) & (d < D) & (p < R)[None, :]
        x = tl.load(poses + at * (R * D) + (p * D)[None, :] + d, mask, other=0.0).to(tl.float32)
        share_mask = live[None, :] & (base + lane3 < WI)
        if SCORE == UNIFORM and WEIGHTED:
            at3, inside3 = children(
                row[None, :], base, lane3 + group * WI, rows, C, H, W, HO, WO, I, KS, STRIDE, PAD,
                BC if GROUPS == 1 else 0,
            )  # fmt: skip
            active = tl.load(activations + at3, inside3 & (base + lane3 < WI), other=0.0)
            x *= _over_entries(active.to(tl.float32), BM, BC, BD)
        table_at = (group * WI + base + lane3).to(tl.int64) * rows + row[None, :]
        s_at = (row * (J * R * E) + p * E)[:, None] + e[None, :]
        s_mask = (live & (p < R))[:, None] & (e < E)[None, :]
        new_totals = ()
        for k in tl.static_range(JB):
            j = first + k
            s = tl.load(grad1 + s_at + j * (R * E), s_mask & (j < J), other=0.0).to(CAST)
            weighed = x
            if SCORE != UNIFORM:
                share = tl.load(
                    shares + table_at + j.to(tl.int64) * C * rows, share_mask & (j < J), other=0.0
                )
                weighed = x * _over_entries(share.to(tl.float32), BM, BC, BD)
            sums = tl.dot(weighed.to(CAST), s, totals[k], input_precision=P)
            if SCORE == DOT:
                q = tl.load(query + s_at + j * (R * E), s_mask & (j < J), other=0.0).to(CAST)
                scored = tl.load(
                    d_logits + table_at + j.to(tl.int64) * C * rows, share_mask & (j < J), other=0.0
                )
                weighed = x * _over_entries(scored.to(tl.float32), BM, BC, BD)
                sums = tl.dot(weighed.to(CAST), q, sums, input_precision=P)
            new_totals = new_totals + (sums,)
        totals = new_totals
    for k in tl.static_range(JB):
        to = (
            ((split.to(tl.int64) * WI + base + lane) * J + first + k) * (D * E) + d * E + e[None, :]
        )
        mask = (base + lane < WI) & (d < D) & (e < E)[None, :] & (first + k < J)
        sums = totals[k]
        if SCORE == UNIFORM:
            sums *= 1.0 / J
        tl.store(d_weight + to, sums, mask)


@triton.jit
def _over_entries(share, BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr):
    """Repeat each child's share for the entries of its pose. [BC,BM] -> [BC*BD,BM]"""
    return tl.reshape(tl.broadcast_to(share[:, None, :], (BC, BD, BM)), (BC * BD, BM))


SCORES = {"uniform": 0, "dot": 1, "linear": 2, "known": 3}


def tile(shape: Shape, score: str, kernel: str) -> Tile:
    """Tile of a kernel: many parents pay for wider tiles, and so do many blocks."""
    many = shape.parents > 32
    blocks = cdiv(shape.rows, 64) * cdiv(shape.children * pow2(shape.in_dim), 64)
    if kernel == "stats":
        return Tile(64, 128 if many or score == "linear" else 64, 4, 3)
    if kernel == "gather":
        if score == "linear":
            return Tile(32, 64, 2, 3, 4)
        if score == "known":
            return Tile(64, 64, 4, 1, 4)
        if many and shape.rows >= 128 and pow2(shape.out_dim) <= 16:
            return Tile(128, 64, 8, 3, 4)
        return Tile(64, 64, 4, 3, 2)
    if kernel == "to_transforms":
        return Tile(64, 64, 4, 1, 4)
    if score == "linear":
        # wider without windows: matrix poses, and sizes too large for the kernels in `shares`
        return Tile(32, 64 if shape.covers else 32, 2, 3)
    return Tile(64, 64 if many or score == "uniform" or blocks >= 264 else 32, 4, 3)


def _sizes(shape: Shape, t: Tile, kernel: str, size: int) -> tuple[int, int, int]:
    """Children of a block, and bytes of a pipeline stage and of a product, for entries of `size`
    bytes.
    """
    wide, out = pow2(shape.in_dim), max(16, pow2(shape.out_dim))
    limit = shape.transforms if kernel == "to_transforms" else shape.children
    block = max(1, 16 // wide, min(pow2(limit), t.columns // wide))
    columns = block * wide
    transforms, state, poses = size * columns * out, 4 * t.rows * out, size * t.rows * columns
    shares = 4 * t.rows // pow2(shape.pose_rows) * block
    stage = {
        "stats": transforms + state,
        "gather": t.parents * (2 * transforms + shares) + poses + shares,
        "to_children": transforms + 2 * state,
        "to_transforms": 2 * t.parents * (state + shares) + poses,
    }[kernel]
    return block, stage, 4 * t.rows * columns


def options(shape: Shape, t: Tile, score: str, kernel: str, poses: Tensor) -> dict:
    size = poses.element_size()
    tiles = list(narrower(t))
    t = next(
        (n for n in tiles if max(_sizes(shape, n, kernel, size)) <= shared_memory()), tiles[-1]
    )
    block, stage, product = _sizes(shape, t, kernel, size)
    chosen = {
        **shape.constants(),
        **arithmetic(poses),
        "SCORE": SCORES[score],
        "RP": pow2(shape.pose_rows),
        "BM": t.rows,
        "BD": pow2(shape.in_dim),
        "BC": block,
        "BE": max(16, pow2(shape.out_dim)),
        "num_warps": t.warps,
        "num_stages": stages(t.stages, stage, product, t.warps),
    }
    if kernel in ("gather", "to_transforms"):
        chosen["JB"] = min(t.parents, pow2(shape.parents))
    if kernel != "to_transforms":
        chosen |= {"CL": min(4, block), "DL": min(2, chosen["BD"])}
    return chosen


def _gather(
    shape: Shape, score: str, inputs: Inputs, lse: Tensor, shares: Tensor, with_coupling: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of shares [rows,J] and of votes [rows,J,R,E], and the coupling [rows,J,C]."""
    poses, weight, activations = inputs[:3]
    f32, new = torch.float32, poses.new_empty
    o = options(shape, tile(shape, score, "gather"), score, "gather", poses)
    rows, groups = cdiv(shape.rows, o["BM"] // o["RP"]), cdiv(shape.parents, o["JB"])
    splits, chunk = split(cdiv(shape.children, o["BC"]), rows * groups, poses.device, max_ranges=32)
    weighted = activations is not None
    sum1 = new((splits, shape.rows, shape.parents, shape.pose_rows, shape.out_dim), dtype=f32)
    sum0 = new((splits, shape.rows, shape.parents) if weighted else (1, 0), dtype=f32)
    table = (shape.rows, shape.parents, shape.children)
    coupling = new(table if with_coupling else (0,), dtype=f32)
    o |= {"CHUNK": chunk, "WEIGHTED": weighted, "WITH_COUPLING": with_coupling}
    gather[(rows, groups, splits)](
        poses, weight, activations, inputs.query, inputs.route_weight, inputs.route_bias, lse,
        shares, sum0, sum1, coupling, shape.rows, **o,
    )  # fmt: skip
    return total(sum0), total(sum1), coupling


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
    if score != "uniform":
        o = options(shape, tile(shape, score, "stats"), score, "stats", poses)
        grid = (cdiv(shape.rows, o["BM"] // o["RP"]), cdiv(shape.children, o["BC"]))
        score_inputs = (inputs.query, inputs.route_weight, inputs.route_bias, lse)
        stats[grid](poses, weight, *score_inputs, shape.rows, **o)
    sum0, sum1, coupling = _gather(shape, score, inputs, lse, new(0, dtype=f32), with_coupling)
    return sum0, sum1, new(0, dtype=f32), lse, coupling


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
    o = options(shape, tile(shape, score, "to_children"), score, "to_children", poses)
    row_blocks = cdiv(shape.rows, o["BM"] // o["RP"])
    num_slots = row_blocks if deterministic else 1
    f32, new = torch.float32, poses.new_empty
    weighted = activations is not None
    empty = new(0, dtype=f32)
    size = (shape.parents, shape.children, shape.rows)
    kind = poses.dtype if o["CAST"] != tl.float32 else f32
    scored = score != "uniform"
    to_shares, to_logits = scored and needs.weight, score == "dot" and (needs.weight or needs.query)
    shares = new(size if to_shares else 0, dtype=kind)
    d_logits = new(size if to_logits else 0, dtype=kind)
    d_poses = new((shape.rows, shape.children, poses.shape[-1]) if needs.poses else 0, dtype=f32)
    expected_grad = new((shape.rows, shape.children) if weighted else 0, dtype=f32)
    d_route, d_bias = (
        empty if t is None else t.new_zeros((num_slots, *t.shape), dtype=f32)
        for t in (route_weight, route_bias)
    )
    if scored or weighted or needs.poses:
        to_children[(row_blocks, cdiv(shape.children, o["BC"]))](
            poses, weight, activations, query, route_weight, route_bias, lse, *grads,
            d_poses, shares, d_logits, expected_grad, d_route, d_bias, num_slots,
            shape.rows, **o, WEIGHTED=weighted, TO_POSES=needs.poses, TO_SHARES=to_shares,
            TO_LOGITS=to_logits,
        )  # fmt: skip
    d_query = d_weight = empty
    if query is not None and needs.query:
        unweighted = inputs._replace(activations=None)
        d_query = _gather(shape, "known", unweighted, lse, d_logits, False)[1]
    if needs.weight:
        o = options(shape, tile(shape, score, "to_transforms"), score, "to_transforms", poses)
        lines = shape.rows * o["RP"] * (shape.children // shape.transforms)
        grid = cdiv(shape.transforms, o["BC"]), cdiv(shape.parents, o["JB"])
        splits, chunk = split(cdiv(lines, o["BM"]), grid[0] * grid[1], poses.device)
        d_weights = new((splits, *weight.shape), dtype=f32)
        to_transforms[(*grid, splits)](
            poses, activations, query, grads[1], shares, d_logits, d_weights, shape.rows,
            **o, CHUNK=chunk, WEIGHTED=weighted,
        )  # fmt: skip
        d_weight = total(d_weights)
    return Inputs(
        shape.fold(d_poses[None], poses.dtype) if needs.poses else empty,
        d_weight,
        shape.fold(expected_grad[None]) if weighted else empty,
        d_query,
        route_weight=empty if route_weight is None else total(d_route),
        route_bias=empty if route_bias is None else total(d_bias),
    )
