"""The fused step of routings whose scores need the votes, in Triton: EM, and matrix poses.

A program owns BM rows (batch x positions), a block of BJ parents and a range of children. For each
child it forms the votes in registers by a matrix product, scores them, normalizes over parents and
adds them up, so registers hold the votes of one child at a time.

    vote_p = pose_p W                         p: the R rows of a matrix pose (R=1: a vector)
    logit  = <vote, query>                                  DOT: dynamic, inverted attention
           | bias - <precision, (vote - query)^2>           GAUSS: EM, query is the parents' mean
    share  = softmax over parents of logit, times the child's activation
    sums   = sum over children of share, share * vote [GAUSS: vote - query], share * vote^2

The forward pass saves the logarithm of the softmax denominator for the backward pass. With several
blocks of parents it is computed first: the same kernel with STATS=True writes each block's
contribution. Masks pad sizes that are not powers of two.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcaps.kernels.common import (
    LN2,
    LOG2E,
    Shape,
    arithmetic,
    cdiv,
    child,
    corner,
    load_parents,
    multiprocessors,
    over_parent_poses,
    pow2,
    stack,
    stages,
    store_parents,
    to_parent_poses,
    total,
)
from torchcaps.kernels.ops import Inputs, Needs
from torchcaps.kernels.plans import Plan, plan

DOT = tl.constexpr(0)
GAUSS = tl.constexpr(1)


@triton.jit
def _votes(
    poses, wt, at, inside, d, R: tl.constexpr, D: tl.constexpr, CAST: tl.constexpr, P: tl.constexpr
):
    """The R rows of a child's poses [BM,BD] and of its votes [BM,BN]."""
    xs = ()
    votes = ()
    for p in tl.static_range(R):
        mask = inside[:, None] & (d[None, :] < D)
        x_at = at[:, None] * (R * D) + (p * D + d)[None, :]
        x = tl.load(poses + x_at, mask, other=0.0).to(CAST)
        xs = xs + (x,)
        votes = votes + (tl.dot(x, wt, input_precision=P),)
    return xs, votes


@triton.jit
def _entries(n, BJ: tl.constexpr, BE: tl.constexpr, EL: tl.constexpr, JL: tl.constexpr):
    """Parent and pose entry of column n: (JH, EH, JL, EL) from slow to fast.

    A product's registers alternate between warps every EL * JL columns; with all entries of a pose
    in one warp, sums over poses need no shared memory.
    """
    EH: tl.constexpr = BE // EL
    return n // (EL * JL * EH) * JL + n // EL % JL, n // (EL * JL) % EH * EL + n % EL


@triton.jit
def _scale(tiles, R: tl.constexpr, by):
    scaled = ()
    for p in tl.static_range(R):
        scaled = scaled + (tiles[p] * by,)
    return scaled


@triton.jit
def _load_state(
    query, precision, bias, block, rows, J: tl.constexpr, R: tl.constexpr, D: tl.constexpr,
    E: tl.constexpr, BM: tl.constexpr, BJ: tl.constexpr, BE: tl.constexpr, BD: tl.constexpr,
    EL: tl.constexpr, JL: tl.constexpr, SCORE: tl.constexpr,
):  # fmt: skip
    """What both kernels start with: the rows and parents of a program, and what scores the votes.
    Scores have base 2, so what they are linear in is scaled here, outside of the loop.

    -> rows and their mask [BM]; parent and entry of each column and their mask [BM,BN]; parents
    [1,JH,JL] and their mask; query, precision and bias; pose entries [BD], offsets and mask of a
    child's transforms [BD,BN]
    """
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    live = row < rows
    j, e = _entries(tl.arange(0, BJ * BE), BJ, BE, EL, JL)
    j += block * BJ
    jj = block * BJ + (tl.arange(0, BJ // JL) * JL)[:, None] + tl.arange(0, JL)[None, :]
    jj = jj[None, :, :]
    mask = live[:, None] & ((j < J) & (e < E))[None, :]
    parent_mask = live[:, None, None] & (jj < J)
    state = load_parents(query, row, j, e, mask, J, R, E)
    width, shift = (), 0.0
    if SCORE == GAUSS:
        width = _scale(load_parents(precision, row, j, e, mask, J, R, E), R, LOG2E)
        shift = tl.load(bias + row[:, None, None] * J + jj, parent_mask, other=0.0) * LOG2E
    else:
        state = _scale(state, R, LOG2E)
    d = tl.arange(0, BD)
    w_off = (j * (D * E) + e)[None, :] + d[:, None] * E
    w_mask = (d[:, None] < D) & ((j < J) & (e < E))[None, :]
    return row, live, j, e, mask, jj, parent_mask, state, width, shift, d, w_off, w_mask


@triton.jit
def _logits(
    votes, query, precision, bias, jj, J: tl.constexpr, SCORE: tl.constexpr, R: tl.constexpr,
    BM: tl.constexpr, BJ: tl.constexpr, BE: tl.constexpr, EL: tl.constexpr, JL: tl.constexpr,
):  # fmt: skip
    """Score of each vote before the softmax over parents. -> [BM,JH,JL]"""
    agreement = tl.zeros((BM, BJ * BE), tl.float32)
    for p in tl.static_range(R):
        if SCORE == DOT:
            agreement += votes[p] * query[p]
        else:
            agreement -= precision[p] * (votes[p] - query[p]) * (votes[p] - query[p])
    logits = over_parent_poses(agreement, BM, BJ, BE, EL, JL)
    if SCORE == GAUSS:
        logits += bias
    return tl.where(jj < J, logits, -float("inf"))


@triton.jit
def forward_kernel(
    poses, weight, activations, query, precision, bias, lse,
    sum0, sum1, sum2, coupling,
    rows, H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    I: tl.constexpr, J: tl.constexpr, C: tl.constexpr, WI: tl.constexpr,
    CHUNK: tl.constexpr, KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BJ: tl.constexpr, BE: tl.constexpr, BD: tl.constexpr,
    EL: tl.constexpr, JL: tl.constexpr, SCORE: tl.constexpr,
    WEIGHTED: tl.constexpr, WITH_LSE: tl.constexpr, STATS: tl.constexpr,
    WITH_COUPLING: tl.constexpr, CAST: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Sums over the children of one range. Grid: row blocks, ranges of children, parent blocks."""
    split = tl.program_id(1)
    block = tl.program_id(2)
    row, live, j, e, mask, jj, parent_mask, state, width, shift, d, w_off, w_mask = _load_state(
        query, precision, bias, block, rows, J, R, D, E, BM, BJ, BE, BD, EL, JL, SCORE
    )
    y, x, first_at = corner(row, H, W, HO, WO, I, STRIDE, PAD)
    row64 = row.to(tl.int64)
    first, second = (), ()
    for p in tl.static_range(R):
        first = first + (tl.zeros((BM, BJ * BE), tl.float32),)
        if SCORE == GAUSS:
            second = second + (tl.zeros((BM, BJ * BE), tl.float32),)
    zeroth = tl.zeros((BM, BJ // JL, JL), tl.float32)
    for step in range(CHUNK):
        c = split * CHUNK + step
        at, inside = child(c, y, x, first_at, live & (c < C), H, W, I, PAD, KS)
        wc = c % WI
        w_base = weight + wc.to(tl.int64) * (J * D * E)
        wt = tl.load(w_base + w_off, w_mask, other=0.0).to(CAST)
        xs, votes = _votes(poses, wt, at, inside, d, R, D, CAST, P)
        logits = _logits(votes, state, width, shift, jj, J, SCORE, R, BM, BJ, BE, EL, JL)
        if WITH_LSE:
            total = tl.load(lse + row64 * C + c, live & (c < C), other=float("inf"))
            share = tl.exp2(logits - total[:, None, None])
        else:
            top = tl.max(tl.max(logits, 2), 1)
            share = tl.exp2(logits - top[:, None, None])
            total = tl.sum(tl.sum(share, 2), 1)
            share *= (1.0 / total)[:, None, None]
            to = lse + (block * rows + row64) * C + c
            tl.store(to, top + tl.log2(total), live & (c < C))
        if not STATS:
            if WITH_COUPLING:
                tl.store(
                    coupling + (row64[:, None, None] * J + jj) * C + c, share, parent_mask & (c < C)
                )
            if WEIGHTED:
                share *= tl.load(activations + at, inside, other=0.0).to(tl.float32)[:, None, None]
                zeroth += share
            wide = to_parent_poses(share, BM, BJ, BE, EL, JL)
            new_first, new_second = (), ()
            for p in tl.static_range(R):
                if SCORE == GAUSS:
                    off = votes[p] - state[p]
                    new_first = new_first + (first[p] + wide * off,)
                    new_second = new_second + (second[p] + wide * off * off,)
                else:
                    new_first = new_first + (first[p] + wide * votes[p],)
            first, second = new_first, new_second
    if not STATS:
        out_row = split * rows + row
        store_parents(sum1, first, out_row, j, e, mask, J, R, E)
        if SCORE == GAUSS:
            store_parents(sum2, second, out_row, j, e, mask, J, R, E)
        if WEIGHTED:
            tl.store(sum0 + out_row[:, None, None] * J + jj, zeroth, parent_mask)


@triton.jit
def backward_kernel(
    poses, weight, activations, query, precision, bias, lse,
    grad0, grad1, grad2, expected_grad,
    d_poses, d_weight, d_query, d_precision, d_bias,
    rows, block_stride, weight_stride, num_slots,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    I: tl.constexpr, J: tl.constexpr, C: tl.constexpr, WI: tl.constexpr,
    CHUNK: tl.constexpr, KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BJ: tl.constexpr, BE: tl.constexpr, BD: tl.constexpr,
    EL: tl.constexpr, JL: tl.constexpr, SCORE: tl.constexpr, WEIGHTED: tl.constexpr,
    WHOLE: tl.constexpr, STATS: tl.constexpr, G: tl.constexpr, RP: tl.constexpr,
    CAST: tl.constexpr, P: tl.constexpr, TO_POSES: tl.constexpr, TO_WEIGHT: tl.constexpr,
):  # fmt: skip
    """All gradients of the step; votes are recomputed.

    `expected_grad` [rows,C] is sum_j share_j d(share_j): the gradient of the activation, and what
    the softmax backward subtracts. If a block does not hold the WHOLE of the parents, a first run
    (STATS) writes each block's sum.

    Weight gradients of a row block are added to its slot. A pose has a gradient for each window and
    block of parents [blocks,rows,C,R,D], so every entry has one writer.
    """
    split = tl.program_id(1)
    block = tl.program_id(2)
    slot = tl.program_id(0) % num_slots
    row, live, j, e, mask, jj, parent_mask, state, width, shift, d, w_off, w_mask = _load_state(
        query, precision, bias, block, rows, J, R, D, E, BM, BJ, BE, BD, EL, JL, SCORE
    )
    y, x, first_at = corner(row, H, W, HO, WO, I, STRIDE, PAD)
    row64 = row.to(tl.int64)
    g1 = load_parents(grad1, row, j, e, mask, J, R, E)
    g2 = ()
    if SCORE == GAUSS:
        g2 = load_parents(grad2, row, j, e, mask, J, R, E)
    if WEIGHTED:
        g0 = tl.load(grad0 + row[:, None, None] * J + jj, parent_mask, other=0.0).to(tl.float32)
    to_query, to_width = (), ()
    for p in tl.static_range(R):
        to_query = to_query + (tl.zeros((BM, BJ * BE), tl.float32),)
        if SCORE == GAUSS:
            to_width = to_width + (tl.zeros((BM, BJ * BE), tl.float32),)
    to_bias = tl.zeros((BM, BJ // JL, JL), tl.float32)
    if RP == 1:  # in G groups, see below
        nb = (tl.arange(0, G) * (BJ * BE // G))[:, None] + tl.arange(0, BJ * BE // G)[None, :]
        nb = nb[:, :, None]
        db = d[None, None, :]
    else:
        nb = tl.arange(0, BJ * BE)[:, None]
        db = d[None, :]
    jb, eb = _entries(nb, BJ, BE, EL, JL)
    jb += block * BJ
    stacked = tl.arange(0, RP * BM)
    all_p = stacked // BM
    all_row = tl.program_id(0) * BM + stacked % BM
    all_live = (all_row < rows) & (all_p < R)
    all_y, all_x, all_at0 = corner(all_row, H, W, HO, WO, I, STRIDE, PAD)
    b_off = jb * (D * E) + eb + db * E
    b_mask = (jb < J) & (eb < E) & (db < D)
    for step in range(CHUNK):
        c = split * CHUNK + step
        at, inside = child(c, y, x, first_at, live & (c < C), H, W, I, PAD, KS)
        wc = c % WI
        w_base = wc.to(tl.int64) * (J * D * E)
        wt = tl.load(weight + w_base + w_off, w_mask, other=0.0).to(CAST)
        # the transposed operands have loads of their own, which go straight to shared memory ahead
        # of their use
        w_back = tl.load(weight + w_base + b_off, b_mask, other=0.0).to(CAST)
        all_at, all_inside = child(c, all_y, all_x, all_at0, all_live, H, W, I, PAD, KS)
        x_at = all_at * (R * D) + all_p * D
        x_back = tl.load(
            poses + x_at[None, :] + d[:, None],
            (all_inside & (c < C))[None, :] & (d[:, None] < D), other=0.0,
        ).to(CAST)  # fmt: skip
        xs, votes = _votes(poses, wt, at, inside, d, R, D, CAST, P)
        scale = 1.0
        if WEIGHTED:
            scale = tl.load(activations + at, inside, other=0.0).to(tl.float32)[:, None, None]
        logits = _logits(votes, state, width, shift, jj, J, SCORE, R, BM, BJ, BE, EL, JL)
        total = tl.load(lse + row64 * C + c, live & (c < C), other=float("inf"))
        share = tl.exp2(logits - total[:, None, None])
        gain = tl.zeros((BM, BJ * BE), tl.float32)
        for p in tl.static_range(R):
            if SCORE == GAUSS:
                off = votes[p] - state[p]
                gain += (g1[p] + g2[p] * off) * off
            else:
                gain += g1[p] * votes[p]
        d_share = over_parent_poses(gain, BM, BJ, BE, EL, JL)
        if WEIGHTED:
            d_share += g0
        grad_at = row64 * C + c
        if STATS:
            grad_at += block * rows * C
        if STATS or WHOLE:
            mean = tl.sum(tl.sum(share * d_share, 2), 1)
            if STATS or WEIGHTED:
                tl.store(expected_grad + grad_at, mean, live & (c < C))
        else:
            mean = tl.load(expected_grad + grad_at, live & (c < C), other=0.0)
        d_logit = share * (d_share - mean[:, None, None]) * (scale * LN2)  # to base 2
        if not STATS:
            if WEIGHTED:
                share *= scale
            wide = to_parent_poses(share, BM, BJ, BE, EL, JL)
            d_wide = to_parent_poses(d_logit, BM, BJ, BE, EL, JL)
            d_votes = ()
            new_query, new_width = (), ()
            for p in tl.static_range(R):
                if SCORE == GAUSS:
                    off = votes[p] - state[p]
                    d_vote = wide * (g1[p] + 2 * g2[p] * off) - 2 * d_wide * width[p] * off
                    new_query = new_query + (to_query[p] - d_vote,)
                    new_width = new_width + (to_width[p] - d_wide * off * off,)
                else:
                    d_vote = wide * g1[p] + d_wide * state[p]
                    new_query = new_query + (to_query[p] + d_wide * votes[p],)
                d_votes = d_votes + (d_vote.to(CAST),)
            for p in tl.static_range(R, RP):
                d_votes = d_votes + (tl.zeros((BM, BJ * BE), CAST),)
            if RP == 1:
                d_all = d_votes[0]
            else:
                d_all = stack(d_votes, RP, BM, BJ * BE)
            if TO_POSES:
                if RP == 1:
                    # in G groups: the product is too small for all warps, each would hold all of it
                    left = tl.permute(tl.reshape(d_all, (BM, G, BJ * BE // G)), (1, 0, 2))
                    d_x = tl.sum(tl.dot(left, w_back, input_precision=P), 0)
                else:
                    d_x = tl.dot(d_all, w_back, input_precision=P)
                x_to = block.to(tl.int64) * block_stride + (all_row.to(tl.int64) * C + c) * (R * D)
                x_to = (x_to + all_p * D)[:, None] + d[None, :]
                tl.store(d_poses + x_to, d_x, (all_live & (c < C))[:, None] & (d[None, :] < D))
            if TO_WEIGHT:
                d_wt = tl.dot(x_back, d_all, input_precision=P)
                w_to = d_weight + slot.to(tl.int64) * weight_stride + w_base
                tl.atomic_add(w_to + w_off, d_wt, w_mask & (c < C), sem="relaxed")
            to_query, to_width = new_query, new_width
            if SCORE == GAUSS:
                to_bias += d_logit
    if not STATS:
        out_row = split * rows + row
        if SCORE == GAUSS:
            to_width = _scale(to_width, R, LOG2E)
            store_parents(d_precision, to_width, out_row, j, e, mask, J, R, E)
            tl.store(d_bias + out_row[:, None, None] * J + jj, to_bias * LOG2E, parent_mask)
        else:
            to_query = _scale(to_query, R, LOG2E)
        store_parents(d_query, to_query, out_row, j, e, mask, J, R, E)


SCORES = {"dot": 0, "gauss": 1}


def options(shape: Shape, p: Plan, score: str, weighted: bool, poses: Tensor) -> dict:
    wide, deep = pow2(shape.out_dim), max(16, pow2(shape.in_dim))
    low = min(8, wide)
    columns, lines = p.parents * wide, p.rows * pow2(shape.pose_rows)
    stage_bytes = 2 * poses.element_size() * deep * (columns + lines)  # each in two orders
    return {
        **shape.constants(),
        **arithmetic(poses),
        "CHUNK": cdiv(shape.children, p.splits),
        "BM": p.rows,
        "BJ": p.parents,
        "BE": wide,
        "BD": deep,
        "EL": low,
        "JL": min(p.parents, 8 * p.warps // low),
        "SCORE": SCORES[score],
        "WEIGHTED": weighted,
        "num_warps": p.warps,
        "num_stages": stages(p.stages, stage_bytes, 8 * columns * lines),
    }


def forward(
    shape: Shape,
    score: str,
    inputs: Inputs,
    with_coupling: bool,
    across: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """-> sums of shares [rows,J], of votes and of squares [rows,J,R,E]; log-denominators; coupling

    coupling [rows,J,C], in the order in which the kernel writes it
    across: the denominator of a child sums over all windows that see it
    """
    poses = inputs.poses
    p = plan(shape, score, False, multiprocessors(poses.device))
    weighted = inputs.activations is not None
    new, f32 = poses.new_empty, torch.float32
    parents = (p.splits, shape.rows, shape.parents, shape.pose_rows, shape.out_dim)
    sum0 = new(parents[:3] if weighted else (1, 0), dtype=f32)
    sum1 = new(parents, dtype=f32)
    sum2 = new(parents if score == "gauss" else (1, 0), dtype=f32)
    per_child = (shape.rows, shape.children)
    coupling = new(
        (shape.rows, shape.parents, shape.children) if with_coupling else (0,), dtype=f32
    )
    tensors = inputs[:6]
    sums = (sum0, sum1, sum2, coupling, shape.rows)
    common = options(shape, p, score, weighted, poses)
    blocks = cdiv(shape.parents, p.parents)
    grid = (cdiv(shape.rows, p.rows), p.splits, blocks)
    lse = new(per_child, dtype=f32)
    stats_first = blocks > 1 or across
    if stats_first:
        block_lse = new((blocks, *per_child), dtype=f32)
        common |= {"WITH_LSE": False, "STATS": True, "WITH_COUPLING": False}
        forward_kernel[grid](*tensors, block_lse, *sums, **common)
        lse = block_lse[0]
        if blocks > 1:
            lse = (block_lse * LN2.value).logsumexp(0) * LOG2E.value
        lse = shape.over_windows(lse) if across else lse
    common |= {"WITH_LSE": stats_first, "STATS": False, "WITH_COUPLING": with_coupling}
    forward_kernel[grid](*tensors, lse, *sums, **common)
    return total(sum0), total(sum1), total(sum2), lse, coupling


def backward(
    shape: Shape,
    score: str,
    deterministic: bool,
    grads: tuple[Tensor, Tensor, Tensor],
    lse: Tensor,
    inputs: Inputs,
    across: bool,
    needs: Needs,
) -> Inputs:
    """Gradients of the inputs; empty for inputs that are None or need no gradient.

    across: softmax backward subtracts the sum over all windows that see the child.
    """
    poses = inputs.poses
    p = plan(shape, score, True, multiprocessors(poses.device))
    blocks = cdiv(shape.parents, p.parents)
    weighted = inputs.activations is not None
    row_blocks = cdiv(shape.rows, p.rows)
    slots = row_blocks if deterministic else 1
    f32, new, zeros = torch.float32, poses.new_empty, poses.new_zeros
    parents = (p.splits, shape.rows, shape.parents, shape.pose_rows, shape.out_dim)
    per_child = (shape.rows, shape.children)
    windowed = (blocks, shape.rows, shape.children, poses.shape[-1])
    d_poses = new(windowed if needs.poses else (1, 0), dtype=f32)
    d_weight = zeros((slots, *inputs.weight.shape) if needs.weight else (1, 0), dtype=f32)
    d_query = new(parents, dtype=f32)
    d_precision = new(parents if inputs.precision is not None else (1, 0), dtype=f32)
    d_bias = new(parents[:3] if inputs.bias is not None else (1, 0), dtype=f32)
    expected_grad = new(per_child if weighted else (0,), dtype=f32)
    tensors = (*inputs[:6], lse, *grads)
    outputs = (d_poses, d_weight, d_query, d_precision, d_bias, shape.rows)
    strides = (d_poses.stride(0), d_weight.stride(0), slots)
    common = options(shape, p, score, weighted, poses)
    common["G"] = min(p.warps, max(1, p.parents * common["BE"] // 16))
    common["RP"] = pow2(shape.pose_rows)
    common |= {"TO_POSES": needs.poses, "TO_WEIGHT": needs.weight}
    grid = (row_blocks, p.splits, blocks)
    stats_first = blocks > 1 or across
    if stats_first:
        block_grad = new((blocks, *per_child), dtype=f32)
        common |= {"WHOLE": False, "STATS": True}
        backward_kernel[grid](*tensors, block_grad, *outputs, *strides, **common)
        expected_grad = total(block_grad)
    d_activations = shape.fold(expected_grad[None]) if across else expected_grad
    mean = shape.unfold(d_activations, 0.0) if across else expected_grad
    common |= {"WHOLE": not stats_first, "STATS": False}
    backward_kernel[grid](*tensors, mean, *outputs, *strides, **common)
    if weighted and not across:  # now complete also without a first run
        d_activations = shape.fold(expected_grad[None])
    return Inputs(
        shape.fold(d_poses, poses.dtype) if needs.poses else d_poses,
        total(d_weight),
        d_activations,
        total(d_query),
        total(d_precision),
        total(d_bias),
    )
