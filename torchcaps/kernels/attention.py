"""The fused step of routings whose scores are linear in a vector vote, in Triton.

Neither votes nor anything of their size is formed. For parent j, with the children's poses x and
transforms W [children x D, E], everything is a product with W or with its transpose:

    G     = query_j W^T                    (self-routing: its route weights in place of G)
    logit = sum over the pose of x * G     share = activation * softmax over parents of logit
    sums_j = (share * x) W                 d(x) = sum_j share * H + d(logit) * G,  H = d(sums_j) W^T
    d(query_j) = (d(logit) * x) W          d(W) = x^T (share * d(sums_j) + d(logit) * query_j)

Tiles and the order of their columns are in `tiles`: a sum over entries stays inside a thread, and
softmax over parents is a loop. Sizes that are no powers of two are padded by masks.
"""

import triton
import triton.language as tl

from torchcaps.kernels.tiles import as_left, columns, left_order, over_poses, to_poses
from torchcaps.kernels.windows import children

UNIFORM = tl.constexpr(0)
DOT = tl.constexpr(1)
LINEAR = tl.constexpr(2)


@triton.jit
def _load_children(
    poses, m, p, c, d, rows, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr,
    WO: tl.constexpr, I: tl.constexpr, KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Poses of the children c of rows m [M,N], where they lie, and which of them are there."""
    at, inside = children(m[:, None], c[None, :], rows, C, H, W, HO, WO, I, KS, STRIDE, PAD)
    there = inside & (p < R)[:, None] & (d < D)[None, :]
    at = at * (R * D) + (p * D)[:, None] + d[None, :]
    return tl.load(poses + at, there, other=0.0).to(tl.float32), at, there


@triton.jit
def _route_logit(
    x, route_weight, route_bias, wn, w3, p, d, j, J: tl.constexpr, R: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, RP: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr,
    CL: tl.constexpr, DL: tl.constexpr,
):  # fmt: skip
    """Self-routing's G, which is the same for all rows, and its logits."""
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
    """Logarithm of every child's softmax denominator. Grid: row blocks, child blocks."""
    m = tl.program_id(0) * (BM // RP) + tl.arange(0, BM) // RP
    p = tl.arange(0, BM) % RP
    c, d = columns(tl.arange(0, BC * BD), BD, CL, DL)
    c += tl.program_id(1) * BC
    e = tl.arange(0, BE)
    x, x_at, there = _load_children(
        poses, m, p, c, d, rows, C, H, W, HO, WO, I, KS, STRIDE, PAD, R, D
    )
    row3 = (tl.program_id(0) * (BM // RP) + tl.arange(0, BM // RP))[:, None, None]
    c3 = tl.program_id(1) * BC + (tl.arange(0, BC // CL) * CL)[:, None] + tl.arange(0, CL)[None, :]
    c3 = c3[None, :, :]
    top = tl.full((BM // RP, BC // CL, CL), -float("inf"), tl.float32)
    total = tl.zeros((BM // RP, BC // CL, CL), tl.float32)
    q_at = m[:, None] * (J * R * E) + (p * E)[:, None] + e[None, :]
    q_mask = ((m < rows) & (p < R))[:, None] & (e < E)[None, :]
    t_at = (c % WI * (J * D * E) + d * E)[None, :] + e[:, None]
    t_mask = ((c < C) & (d < D))[None, :] & (e < E)[:, None]
    for j in range(J):
        if SCORE == DOT:
            q = tl.load(query + q_at + j * (R * E), q_mask, other=0.0).to(CAST)
            wt = tl.load(weight + t_at + j * (D * E), t_mask, other=0.0).to(CAST)
            g = tl.dot(q, wt, input_precision=P)
            logit = over_poses(x * g, BM, RP, BC, BD, CL, DL)
        else:
            g, logit = _route_logit(
                x, route_weight, route_bias, c % WI, c3 % WI, p, d, j, J, R, D,
                BM, RP, BC, BD, CL, DL,
            )  # fmt: skip
        higher = tl.maximum(top, logit)
        total = total * tl.exp(top - higher) + tl.exp(logit - higher)
        top = higher
    tl.store(lse + row3.to(tl.int64) * C + c3, top + tl.log(total), (row3 < rows) & (c3 < C))


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
    m = tl.program_id(0) * (BM // RP) + tl.arange(0, BM) // RP
    p = tl.arange(0, BM) % RP
    first, split = tl.program_id(1) * JB, tl.program_id(2)
    cn, d = columns(tl.arange(0, BC * BD), BD, CL, DL)
    cl, dk = columns(left_order(tl.arange(0, BC * BD), CAST), BD, CL, DL)
    e = tl.arange(0, BE)
    row3 = (tl.program_id(0) * (BM // RP) + tl.arange(0, BM // RP))[:, None, None]
    cb3 = ((tl.arange(0, BC // CL) * CL)[:, None] + tl.arange(0, CL)[None, :])[None, :, :]
    q_at = m[:, None] * (J * R * E) + (p * E)[:, None] + e[None, :]
    q_mask = ((m < rows) & (p < R))[:, None] & (e < E)[None, :]
    qs, sums, masses = (), (), ()
    for k in tl.static_range(JB):
        sums = sums + (tl.zeros((BM, BE), tl.float32),)
        masses = masses + (tl.zeros((BM // RP, BC // CL, CL), tl.float32),)
        if SCORE == DOT:
            q_there = q_mask & (first + k < J)
            q = tl.load(query + q_at + (first + k) * (R * E), q_there, other=0.0)
            qs = qs + (q.to(CAST),)
    for step in range(CHUNK):
        c = (split * CHUNK + step) * BC + cn
        c3 = (split * CHUNK + step) * BC + cb3
        x, x_at, there = _load_children(
            poses, m, p, c, d, rows, C, H, W, HO, WO, I, KS, STRIDE, PAD, R, D
        )
        if SCORE != UNIFORM:
            total = tl.load(
                lse + row3.to(tl.int64) * C + c3, (row3 < rows) & (c3 < C), other=float("inf")
            )
        if WEIGHTED:
            at3, inside3 = children(row3, c3, rows, C, H, W, HO, WO, I, KS, STRIDE, PAD)
            active = tl.load(activations + at3, inside3, other=0.0).to(tl.float32)
        # Both orders of the transforms are loaded for themselves: each goes straight to where its
        # product wants it, ahead of its use.
        ck = (split * CHUNK + step) * BC + cl
        w_at = (ck % WI * (J * D * E) + dk * E)[:, None] + e[None, :]
        w_mask = ((ck < C) & (dk < D))[:, None] & (e < E)[None, :]
        t_at = (c % WI * (J * D * E) + d * E)[None, :] + e[:, None]
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
                g = tl.dot(qs[k], wt, input_precision=P)
                share = tl.exp(over_poses(x * g, BM, RP, BC, BD, CL, DL) - total)
            else:
                g, logit = _route_logit(
                    x, route_weight, route_bias, c % WI, c3 % WI, p, d,
                    tl.minimum(first + k, J - 1), J, R, D, BM, RP, BC, BD, CL, DL,
                )  # fmt: skip
                share = tl.exp(logit - total)
            if WITH_COUPLING:
                tl.store(
                    coupling + (row3.to(tl.int64) * J + first + k) * C + c3, share,
                    (row3 < rows) & (c3 < C) & (first + k < J),
                )  # fmt: skip
            if WEIGHTED:
                share *= active
                new_masses = new_masses + (masses[k] + share,)
            part = (x * to_poses(share, BM, RP, BC, BD, CL, DL)).to(CAST)
            part = as_left(part, BM, BC * BD, CAST)
            new_sums = new_sums + (tl.dot(part, w, sums[k], input_precision=P),)
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
def backward(
    poses, weight, activations, query, route_weight, route_bias, lse, grad0, grad1,
    d_poses, d_weight, spread, d_query, d_route_weight, d_route_bias,
    pose_stride, weight_stride, query_stride, weight_slots, query_slots,
    rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    I: tl.constexpr, J: tl.constexpr, C: tl.constexpr, WI: tl.constexpr,
    KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, E: tl.constexpr, RP: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    CL: tl.constexpr, DL: tl.constexpr, SCORE: tl.constexpr, CAST: tl.constexpr,
    P: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """Every gradient. Grid: row blocks, child blocks.

    A program has all parents of its children, so the gradient of the poses is whole; that of the
    transforms is added over row blocks, that of the queries over child blocks, each to a slot (one
    for each block where the sums must not depend on the order). `spread` is sum_j share d(share):
    the gradient of the activation, and what softmax's backward subtracts.
    """
    m = tl.program_id(0) * (BM // RP) + tl.arange(0, BM) // RP
    p = tl.arange(0, BM) % RP
    c, d = columns(tl.arange(0, BC * BD), BD, CL, DL)
    c += tl.program_id(1) * BC
    e = tl.arange(0, BE)
    x, x_at, there = _load_children(
        poses, m, p, c, d, rows, C, H, W, HO, WO, I, KS, STRIDE, PAD, R, D
    )
    row3 = (tl.program_id(0) * (BM // RP) + tl.arange(0, BM // RP))[:, None, None]
    c3 = tl.program_id(1) * BC + (tl.arange(0, BC // CL) * CL)[:, None] + tl.arange(0, CL)[None, :]
    c3 = c3[None, :, :]
    seen = (row3 < rows) & (c3 < C)
    active = 1.0
    if WEIGHTED:
        at3, inside3 = children(row3, c3, rows, C, H, W, HO, WO, I, KS, STRIDE, PAD)
        active = tl.load(activations + at3, inside3, other=0.0).to(tl.float32)
    if SCORE != UNIFORM:
        total = tl.load(lse + row3.to(tl.int64) * C + c3, seen, other=float("inf"))
    q_at = m[:, None] * (J * R * E) + (p * E)[:, None] + e[None, :]
    q_mask = ((m < rows) & (p < R))[:, None] & (e < E)[None, :]
    t_at = (c % WI * (J * D * E) + d * E)[None, :] + e[:, None]
    t_mask = ((c < C) & (d < D))[None, :] & (e < E)[:, None]
    ck, dk = columns(left_order(tl.arange(0, BC * BD), CAST), BD, CL, DL)
    ck += tl.program_id(1) * BC
    w_at = (ck % WI * (J * D * E) + dk * E)[:, None] + e[None, :]
    w_mask = ((ck < C) & (dk < D))[:, None] & (e < E)[None, :]
    even = 1.0 / J
    mean = tl.zeros((BM // RP, BC // CL, CL), tl.float32)
    if SCORE != UNIFORM or WEIGHTED:
        for j in range(J):
            wt = tl.load(weight + t_at + j * (D * E), t_mask, other=0.0).to(CAST)
            s = tl.load(grad1 + q_at + j * (R * E), q_mask, other=0.0).to(CAST)
            h = tl.dot(s, wt, input_precision=P)
            d_share = over_poses(x * h, BM, RP, BC, BD, CL, DL)
            if WEIGHTED:
                d_share += tl.load(grad0 + row3 * J + j, row3 < rows, other=0.0)
            if SCORE == DOT:
                q = tl.load(query + q_at + j * (R * E), q_mask, other=0.0).to(CAST)
                g = tl.dot(q, wt, input_precision=P)
                share = tl.exp(over_poses(x * g, BM, RP, BC, BD, CL, DL) - total)
            elif SCORE == LINEAR:
                g, logit = _route_logit(
                    x, route_weight, route_bias, c % WI, c3 % WI, p, d, j, J, R, D,
                    BM, RP, BC, BD, CL, DL,
                )  # fmt: skip
                share = tl.exp(logit - total)
            else:
                share = even
            mean += share * d_share
        if WEIGHTED:
            tl.store(spread + row3.to(tl.int64) * C + c3, mean, seen)
    d_x = tl.zeros((BM, BC * BD), tl.float32)
    slot_w = (tl.program_id(0) % weight_slots).to(tl.int64)
    slot_q = (tl.program_id(1) % query_slots).to(tl.int64)
    for j in range(J):
        wt = tl.load(weight + t_at + j * (D * E), t_mask, other=0.0).to(CAST)
        s = tl.load(grad1 + q_at + j * (R * E), q_mask, other=0.0).to(CAST)
        h = tl.dot(s, wt, input_precision=P)
        if SCORE == UNIFORM:
            share = even * active
            if WEIGHTED:
                weighed = to_poses(share, BM, RP, BC, BD, CL, DL)
            else:
                weighed = even
            d_x += weighed * h
            d_w = tl.dot(tl.trans(s), (weighed * x).to(CAST), input_precision=P)
        else:
            d_share = over_poses(x * h, BM, RP, BC, BD, CL, DL)
            if WEIGHTED:
                d_share += tl.load(grad0 + row3 * J + j, row3 < rows, other=0.0)
            if SCORE == DOT:
                q = tl.load(query + q_at + j * (R * E), q_mask, other=0.0).to(CAST)
                g = tl.dot(q, wt, input_precision=P)
                share = tl.exp(over_poses(x * g, BM, RP, BC, BD, CL, DL) - total)
            else:
                g, logit = _route_logit(
                    x, route_weight, route_bias, c % WI, c3 % WI, p, d, j, J, R, D,
                    BM, RP, BC, BD, CL, DL,
                )  # fmt: skip
                share = tl.exp(logit - total)
            share *= active
            d_logit = share * (d_share - mean)
            weighed = to_poses(share, BM, RP, BC, BD, CL, DL)
            scored = to_poses(d_logit, BM, RP, BC, BD, CL, DL)
            d_x += weighed * h + scored * g
            x_scored = (scored * x).to(CAST)
            d_w = tl.dot(tl.trans(s), (weighed * x).to(CAST), input_precision=P)
            if SCORE == DOT:
                d_w = tl.dot(tl.trans(q), x_scored, d_w, input_precision=P)
                w = tl.load(weight + w_at + j * (D * E), w_mask, other=0.0).to(CAST)
                d_q = tl.dot(as_left(x_scored, BM, BC * BD, CAST), w, input_precision=P)
                to_q = d_query + slot_q * query_stride + q_at + j * (R * E)
                tl.atomic_add(to_q, d_q, q_mask, sem="relaxed")
            else:
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
        to_w = d_weight + slot_w * weight_stride + t_at + j * (D * E)
        tl.atomic_add(to_w, d_w, t_mask, sem="relaxed")
    copy = c // I // KS // STRIDE * ((KS + STRIDE - 1) // STRIDE) + c // I % KS // STRIDE
    tl.store(d_poses + copy.to(tl.int64)[None, :] * pose_stride + x_at, d_x, there)
