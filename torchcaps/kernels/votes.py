"""The fused step of routings that must see the votes, in Triton: EM, and matrix poses.

A program owns BM rows (batch x positions), a block of BJ parents and a range of children. For each
child it forms the votes in registers by a matrix product, scores them, normalises over parents and
adds them up; the votes of one child are gone before those of the next are formed.

    vote_p = pose_p W                         p: the R rows of a matrix pose (R=1: a vector)
    logit  = <vote, query>                                  DOT: dynamic, inverted attention
           | bias - <precision, (vote - query)^2>           GAUSS: EM, query is the parents' mean
    share  = softmax over parents of logit, times the child's activation
    sums   = sum over children of share, share * vote [GAUSS: vote - query], share * vote^2

The forward run leaves the logarithm of the denominator for the backward run. Several blocks of
parents need it first: the same kernel with STATS=True writes each block's part. Sizes that are no
powers of two are padded by masks.
"""

import triton
import triton.language as tl

from torchcaps.kernels.windows import child, corner

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
        x = tl.load(poses + (at[:, None] * (R * D) + (p * D + d)[None, :]), mask, other=0.0).to(
            CAST
        )
        xs = xs + (x,)
        votes = votes + (tl.dot(x, wt, input_precision=P),)
    return xs, votes


@triton.jit
def _load_parents(ptr, row, j, e, mask, J: tl.constexpr, R: tl.constexpr, E: tl.constexpr):
    """R tiles [BM,BN] of a parent tensor [rows,J,R,E]."""
    tiles = ()
    for p in tl.static_range(R):
        at = (row * J)[:, None] * (R * E) + (j * (R * E) + p * E + e)[None, :]
        tiles = tiles + (tl.load(ptr + at, mask, other=0.0).to(tl.float32),)
    return tiles


@triton.jit
def _store_parents(ptr, tiles, row, j, e, mask, J: tl.constexpr, R: tl.constexpr, E: tl.constexpr):
    for p in tl.static_range(R):
        at = (row * J)[:, None] * (R * E) + (j * (R * E) + p * E + e)[None, :]
        tl.store(ptr + at, tiles[p], mask)


@triton.jit
def _entries(n, BJ: tl.constexpr, BE: tl.constexpr, EL: tl.constexpr, JL: tl.constexpr):
    """Parent and pose entry of column n: (JH, EH, JL, EL) from slow to fast.

    In a product's registers the warps take turns every EL * JL columns; with all entries of a pose
    in one warp, sums over poses need no shared memory.
    """
    EH: tl.constexpr = BE // EL
    return n // (EL * JL * EH) * JL + n // EL % JL, n // (EL * JL) % EH * EL + n % EL


@triton.jit
def _parents(
    block, row, live, J: tl.constexpr, E: tl.constexpr, BJ: tl.constexpr, BE: tl.constexpr,
    EL: tl.constexpr, JL: tl.constexpr,
):  # fmt: skip
    """Parent and entry of each column, parents as [1,JH,JL], and which of both are there."""
    j, e = _entries(tl.arange(0, BJ * BE), BJ, BE, EL, JL)
    j += block * BJ
    jj = block * BJ + (tl.arange(0, BJ // JL) * JL)[:, None] + tl.arange(0, JL)[None, :]
    jj = jj[None, :, :]
    there = live[:, None] & ((j < J) & (e < E))[None, :]
    return j, e, jj, there, live[:, None, None] & (jj < J)


@triton.jit
def _state(
    query, precision, bias, row, j, e, jj, there, seen,
    J: tl.constexpr, R: tl.constexpr, E: tl.constexpr, SCORE: tl.constexpr,
):  # fmt: skip
    """What the rows' parents are scored with: query, precision and bias."""
    state = _load_parents(query, row, j, e, there, J, R, E)
    width, shift = (), 0.0
    if SCORE == GAUSS:
        width = _load_parents(precision, row, j, e, there, J, R, E)
        shift = tl.load(bias + row[:, None, None] * J + jj, seen, other=0.0).to(tl.float32)
    return state, width, shift


@triton.jit
def _over_poses(
    tile, BM: tl.constexpr, BJ: tl.constexpr, BE: tl.constexpr, EL: tl.constexpr, JL: tl.constexpr
):
    """Sum over the entries of each parent's pose. [BM,BJ*BE] -> [BM,JH,JL]"""
    parts = tl.reshape(tile, (BM, BJ // JL, BE // EL, JL, EL))
    return tl.sum(tl.sum(parts, 4), 2)


@triton.jit
def _to_poses(
    share, BM: tl.constexpr, BJ: tl.constexpr, BE: tl.constexpr, EL: tl.constexpr, JL: tl.constexpr
):
    """The transpose of that. [BM,JH,JL] -> [BM,BJ*BE]"""
    parts = tl.broadcast_to(share[:, :, None, :, None], (BM, BJ // JL, BE // EL, JL, EL))
    return tl.reshape(parts, (BM, BJ * BE))


@triton.jit
def _stack(tiles, N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """N = 2, 4 or 8 tiles [BM,BN] below each other. -> [N*BM,BN]"""
    if N == 2:
        whole = tl.join(tiles[0], tiles[1])
    elif N == 4:
        whole = tl.join(tl.join(tiles[0], tiles[2]), tl.join(tiles[1], tiles[3]))
    else:
        even = tl.join(tl.join(tiles[0], tiles[4]), tl.join(tiles[2], tiles[6]))
        odd = tl.join(tl.join(tiles[1], tiles[5]), tl.join(tiles[3], tiles[7]))
        whole = tl.join(even, odd)
    return tl.reshape(tl.permute(tl.reshape(whole, (BM, BN, N)), (2, 0, 1)), (N * BM, BN))


@triton.jit
def _logits(
    votes, query, precision, bias, jj, J: tl.constexpr, SCORE: tl.constexpr, R: tl.constexpr,
    BM: tl.constexpr, BJ: tl.constexpr, BE: tl.constexpr, EL: tl.constexpr, JL: tl.constexpr,
):  # fmt: skip
    agree = tl.zeros((BM, BJ * BE), tl.float32)
    for p in tl.static_range(R):
        if SCORE == DOT:
            agree += votes[p] * query[p]
        else:
            agree -= precision[p] * (votes[p] - query[p]) * (votes[p] - query[p])
    logits = _over_poses(agree, BM, BJ, BE, EL, JL)
    if SCORE == GAUSS:
        logits += bias
    return tl.where(jj < J, logits, -float("inf"))


@triton.jit
def forward(
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
    """Sums over the children of one split. Grid: row blocks, splits, parent blocks."""
    split = tl.program_id(1)
    block = tl.program_id(2)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    live = row < rows
    y, x, first_at = corner(row, H, W, HO, WO, I, STRIDE, PAD)
    row64 = row.to(tl.int64)
    d = tl.arange(0, BD)
    j, e, jj, there, seen = _parents(block, row, live, J, E, BJ, BE, EL, JL)
    state, width, shift = _state(query, precision, bias, row, j, e, jj, there, seen, J, R, E, SCORE)
    first, second = (), ()
    for p in tl.static_range(R):
        first = first + (tl.zeros((BM, BJ * BE), tl.float32),)
        if SCORE == GAUSS:
            second = second + (tl.zeros((BM, BJ * BE), tl.float32),)
    zeroth = tl.zeros((BM, BJ // JL, JL), tl.float32)
    w_off = (j * (D * E) + e)[None, :] + d[:, None] * E
    w_mask = (d[:, None] < D) & ((j < J) & (e < E))[None, :]
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
            share = tl.exp(logits - total[:, None, None])
        else:
            top = tl.max(tl.max(logits, 2), 1)
            share = tl.exp(logits - top[:, None, None])
            total = tl.sum(tl.sum(share, 2), 1)
            share *= (1.0 / total)[:, None, None]
            to = lse + (block * rows + row64) * C + c
            tl.store(to, top + tl.log(total), live & (c < C))
        if not STATS:
            if WITH_COUPLING:
                tl.store(coupling + (row64[:, None, None] * J + jj) * C + c, share, seen & (c < C))
            if WEIGHTED:
                share *= tl.load(activations + at, inside, other=0.0).to(tl.float32)[:, None, None]
                zeroth += share
            wide = _to_poses(share, BM, BJ, BE, EL, JL)
            grown, squared = (), ()
            for p in tl.static_range(R):
                if SCORE == GAUSS:
                    off = votes[p] - state[p]
                    grown = grown + (first[p] + wide * off,)
                    squared = squared + (second[p] + wide * off * off,)
                else:
                    grown = grown + (first[p] + wide * votes[p],)
            first, second = grown, squared
    if not STATS:
        part_row = split * rows + row
        _store_parents(sum1, first, part_row, j, e, there, J, R, E)
        if SCORE == GAUSS:
            _store_parents(sum2, second, part_row, j, e, there, J, R, E)
        if WEIGHTED:
            tl.store(sum0 + part_row[:, None, None] * J + jj, zeroth, seen)


@triton.jit
def backward(
    poses, weight, activations, query, precision, bias, lse,
    grad0, grad1, grad2, spread,
    d_poses, d_weight, d_query, d_precision, d_bias,
    rows, pose_stride, block_stride, weight_stride, num_slots,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
    I: tl.constexpr, J: tl.constexpr, C: tl.constexpr, WI: tl.constexpr,
    CHUNK: tl.constexpr, KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    R: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BJ: tl.constexpr, BE: tl.constexpr, BD: tl.constexpr,
    EL: tl.constexpr, JL: tl.constexpr, SCORE: tl.constexpr, WEIGHTED: tl.constexpr,
    WHOLE: tl.constexpr, STATS: tl.constexpr, G: tl.constexpr, RP: tl.constexpr,
    CAST: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Every gradient of the step, votes recomputed. `spread` [rows,C] is sum_j share_j dshare_j,
    which is the gradient of the activation and what softmax subtracts; where a block is not the
    WHOLE of the parents a first run (STATS) writes its parts.

    Weight gradients of a row block are added to its slot. A pose that several windows or blocks of
    parents see has a copy of its gradient for each, so that every entry has one writer.
    """
    split = tl.program_id(1)
    block = tl.program_id(2)
    slot = tl.program_id(0) % num_slots
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    live = row < rows
    y, x, first_at = corner(row, H, W, HO, WO, I, STRIDE, PAD)
    row64 = row.to(tl.int64)
    d = tl.arange(0, BD)
    j, e, jj, there, seen = _parents(block, row, live, J, E, BJ, BE, EL, JL)
    state, width, shift = _state(query, precision, bias, row, j, e, jj, there, seen, J, R, E, SCORE)
    g1 = _load_parents(grad1, row, j, e, there, J, R, E)
    g2 = ()
    if SCORE == GAUSS:
        g2 = _load_parents(grad2, row, j, e, there, J, R, E)
    if WEIGHTED:
        g0 = tl.load(grad0 + row[:, None, None] * J + jj, seen, other=0.0).to(tl.float32)
    to_query, to_width = (), ()
    for p in tl.static_range(R):
        to_query = to_query + (tl.zeros((BM, BJ * BE), tl.float32),)
        if SCORE == GAUSS:
            to_width = to_width + (tl.zeros((BM, BJ * BE), tl.float32),)
    to_bias = tl.zeros((BM, BJ // JL, JL), tl.float32)
    if RP == 1:  # in G parts, see below
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
    w_off = (j * (D * E) + e)[None, :] + d[:, None] * E
    w_mask = (d[:, None] < D) & ((j < J) & (e < E))[None, :]
    for step in range(CHUNK):
        c = split * CHUNK + step
        at, inside = child(c, y, x, first_at, live & (c < C), H, W, I, PAD, KS)
        wc = c % WI
        w_base = wc.to(tl.int64) * (J * D * E)
        wt = tl.load(weight + w_base + w_off, w_mask, other=0.0).to(CAST)
        # The transposed operands are loaded for themselves, so that each load goes straight to
        # shared memory ahead of its use.
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
        share = tl.exp(logits - total[:, None, None])
        gain = tl.zeros((BM, BJ * BE), tl.float32)
        for p in tl.static_range(R):
            if SCORE == GAUSS:
                off = votes[p] - state[p]
                gain += (g1[p] + g2[p] * off) * off
            else:
                gain += g1[p] * votes[p]
        d_share = _over_poses(gain, BM, BJ, BE, EL, JL)
        if WEIGHTED:
            d_share += g0
        spread_at = row64 * C + c
        if STATS:
            spread_at += block * rows * C
        if STATS or WHOLE:
            mean = tl.sum(tl.sum(share * d_share, 2), 1)
            if STATS or WEIGHTED:
                tl.store(spread + spread_at, mean, live & (c < C))
        else:
            mean = tl.load(spread + spread_at, live & (c < C), other=0.0)
        d_logit = share * (d_share - mean[:, None, None]) * scale
        if not STATS:
            if WEIGHTED:
                share *= scale
            wide = _to_poses(share, BM, BJ, BE, EL, JL)
            d_wide = _to_poses(d_logit, BM, BJ, BE, EL, JL)
            d_votes = ()
            grown_query, grown_width = (), ()
            for p in tl.static_range(R):
                if SCORE == GAUSS:
                    off = votes[p] - state[p]
                    d_vote = wide * (g1[p] + 2 * g2[p] * off) - 2 * d_wide * width[p] * off
                    grown_query = grown_query + (to_query[p] - d_vote,)
                    grown_width = grown_width + (to_width[p] - d_wide * off * off,)
                else:
                    d_vote = wide * g1[p] + d_wide * state[p]
                    grown_query = grown_query + (to_query[p] + d_wide * votes[p],)
                d_votes = d_votes + (d_vote.to(CAST),)
            for p in tl.static_range(R, RP):
                d_votes = d_votes + (tl.zeros((BM, BJ * BE), CAST),)
            if RP == 1:
                d_all = d_votes[0]
            else:
                d_all = _stack(d_votes, RP, BM, BJ * BE)
            if RP == 1:
                # In G parts: the product is too small for all warps, and each would hold all of it.
                left = tl.permute(tl.reshape(d_all, (BM, G, BJ * BE // G)), (1, 0, 2))
                d_x = tl.sum(tl.dot(left, w_back, input_precision=P), 0)
            else:
                d_x = tl.dot(d_all, w_back, input_precision=P)
            copy = c // I // KS // STRIDE * ((KS + STRIDE - 1) // STRIDE) + c // I % KS // STRIDE
            x_to = d_poses + copy.to(tl.int64) * pose_stride + block.to(tl.int64) * block_stride
            x_to += x_at[:, None] + d[None, :]
            tl.store(x_to, d_x, (all_inside & (c < C))[:, None] & (d[None, :] < D))
            d_wt = tl.dot(x_back, d_all, input_precision=P)
            w_to = d_weight + slot.to(tl.int64) * weight_stride + w_base
            tl.atomic_add(w_to + w_off, d_wt, w_mask & (c < C), sem="relaxed")
            to_query, to_width = grown_query, grown_width
            if SCORE == GAUSS:
                to_bias += d_logit
    if not STATS:
        part_row = split * rows + row
        _store_parents(d_query, to_query, part_row, j, e, there, J, R, E)
        if SCORE == GAUSS:
            _store_parents(d_precision, to_width, part_row, j, e, there, J, R, E)
            tl.store(d_bias + part_row[:, None, None] * J + jj, to_bias, seen)
