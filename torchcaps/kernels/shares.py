"""Sums of votes whose shares are known, in Triton: neither votes nor their gradients are formed.

With the children's poses x [rows,C,D], transforms W [N,J,D,E] (child c uses number c modulo N), the
children's shares s [rows,C/N,J,N], as one product with all transforms leaves their logits, and
H = d(sums_j) W^T:

    sums_j = (s_j * x) W_j      d(s_j) = sum over the pose of x * H      d(x) = sum_j s_j * H
    d(W_j) = (s_j * x)^T d(sums_j)

One kernel for the sums, one for what belongs to children, one for the transforms. Each program owns
what it writes, so no gradient is added by atomics and runs agree to the bit.
"""

import triton
import triton.language as tl

from torchcaps.kernels.tiles import columns, over_poses, to_poses


@triton.jit
def _weigh(x, share, BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, CAST: tl.constexpr):
    """x [M,BC*BD] times the share of each child [M,BC]."""
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
    d, there = n % BD, m < rows
    totals = ()
    for k in tl.static_range(JB):
        totals = totals + (tl.zeros((BM, BE), tl.float32),)
    for step in range(CHUNK):
        c = (split * CHUNK + step) * BC + n // BD
        seen = (split * CHUNK + step) * BC + tl.arange(0, BC)
        kept = (c < C) & (d < D)
        x = tl.load(
            poses + (m[:, None] * C + c[None, :]) * D + d[None, :],
            there[:, None] & kept[None, :], other=0.0,
        )  # fmt: skip
        added = ()
        for k in tl.static_range(JB):
            j = first + k
            share = tl.load(
                shares + m[:, None] * (J * C) + (seen // N * J * N + j * N + seen % N)[None, :],
                there[:, None] & (seen < C)[None, :] & (j < J), other=0.0,
            )  # fmt: skip
            w = tl.load(
                weight + ((c % N * J + j) * D + d)[:, None] * E + e[None, :],
                kept[:, None] & (e < E)[None, :] & (j < J), other=0.0,
            ).to(CAST)  # fmt: skip
            part = _weigh(x, share, BM, BC, BD, CAST)
            added = added + (tl.dot(part, w, totals[k], input_precision=P),)
        totals = added
    for k in tl.static_range(JB):
        to = sums + ((split * rows + m)[:, None] * J + first + k) * E + e[None, :]
        tl.store(to, totals[k], there[:, None] & (e < E)[None, :] & (first + k < J))


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
    kept = (c < C) & (d < D)
    x_at = (m[:, None] * C + c[None, :]) * D + d[None, :]
    x_mask = (m < rows)[:, None] & kept[None, :]
    x = tl.load(poses + x_at, x_mask, other=0.0).to(tl.float32)
    m3 = m[:, None, None]
    c3 = tl.program_id(1) * BC + (tl.arange(0, BC // CL) * CL)[:, None] + tl.arange(0, CL)[None, :]
    c3 = c3[None, :, :]
    s_at, s_mask = m3 * (J * C) + c3 // N * (J * N) + c3 % N, (m3 < rows) & (c3 < C)
    g_at, g_mask = m[:, None] * (J * E) + e[None, :], (m < rows)[:, None] & (e < E)[None, :]
    w_at = (c % N * (J * D * E) + d * E)[None, :] + e[:, None]
    w_mask = kept[None, :] & (e < E)[:, None]
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

    Children that share a transform count as rows of their own: row v holds group v modulo C/N.
    """
    first, split = tl.program_id(1) * JB, tl.program_id(2)
    n, e = tl.arange(0, BC * BD), tl.arange(0, BE)
    t, d = tl.program_id(0) * BC + n // BD, n % BD
    seen = tl.program_id(0) * BC + tl.arange(0, BC)
    kept = (t < N) & (d < D)
    totals = ()
    for k in tl.static_range(JB):
        totals = totals + (tl.zeros((BC * BD, BE), tl.float32),)
    for step in range(CHUNK):
        v = (split * CHUNK + step) * BM + tl.arange(0, BM)
        there, row = v < rows * (C // N), v // (C // N)
        x = tl.load(
            poses + (v[:, None] * N + t[None, :]) * D + d[None, :],
            there[:, None] & kept[None, :], other=0.0,
        )  # fmt: skip
        added = ()
        for k in tl.static_range(JB):
            j = first + k
            share = tl.load(
                shares + ((v * J + j) * N)[:, None] + seen[None, :],
                there[:, None] & (seen < N)[None, :] & (j < J), other=0.0,
            )  # fmt: skip
            g = tl.load(
                grad + ((row * J + j) * E)[:, None] + e[None, :],
                there[:, None] & (e < E)[None, :] & (j < J), other=0.0,
            ).to(CAST)  # fmt: skip
            part = tl.trans(_weigh(x, share, BM, BC, BD, CAST))
            added = added + (tl.dot(part, g, totals[k], input_precision=P),)
        totals = added
    for k in tl.static_range(JB):
        to = ((split * N + t) * J + first + k) * (D * E) + d * E
        kept_k = kept[:, None] & (e < E)[None, :] & (first + k < J)
        tl.store(d_weight + to[:, None] + e[None, :], totals[k], kept_k)
