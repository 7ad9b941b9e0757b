"""Self-routing of vector poses over windows, in Triton: couplings are written, votes are not.

A coupling depends on the child's pose and on its place in the window alone, so it is computed once.
With the children's poses x, activations a, transforms W, route weights r and bias b, for row m (a
window), child c and parent j:

    p[j,c,m] = softmax over j of x r_c + b_c         sums_j = sum over c of p a x W_cj
    mass_j   = sum over c of p a                     H = d(sums_j) W_cj^T
    q[j,c,m] = sum over the pose of x * H + d(mass_j)            d(a) = mean = sum over j of p q
    d(logit) = a p (q - mean)                     d(x) = a sum_j p H + d(logit) r^T
    d(W_cj) = (p a x)^T d(sums_j)

p, q and the scaled poses a x are stored with rows last: what a product leaves in a warp is written
in whole sectors, any block of children is read so, and the gradient of the transforms is a product
over rows. Gradients of poses are written for each window and added up by `Shape.fold`. Every entry
has one writer, without atomics, so results are bit-reproducible.

Where children are read from the grid, a block of them has one offset (row and column) in the
window, so its place is one number.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from torchcaps.kernels.common import (
    Shape,
    Tile,
    arithmetic,
    cdiv,
    child_block,
    columns,
    corner,
    over_poses,
    pow2,
    split,
    stages,
    to_poses,
    total,
)
from torchcaps.kernels.ops import Inputs


@triton.jit
def _place(
    block, y, x, live, H: tl.constexpr, W: tl.constexpr, I: tl.constexpr, PAD: tl.constexpr,
    KS: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """First type of a block of children, its first child, offset on the grid, and rows inside."""
    TB: tl.constexpr = (I + BC - 1) // BC
    offset, t = block // TB, block % TB * BC
    ky, kx = offset // KS, offset % KS
    inside = live & (offset < KS * KS)
    if PAD > 0:
        inside = inside & (y + ky >= 0) & (y + ky < H) & (x + kx >= 0) & (x + kx < W)
    return t, offset * I + t, (ky * W + kx) * I + t, inside


@triton.jit
def couple(
    poses, route_weight, route_bias, shares, rows, pitch,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, I: tl.constexpr,
    C: tl.constexpr, N: tl.constexpr, KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    J: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BJ: tl.constexpr, BD: tl.constexpr, CAST: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Shares of each child. Grid: row blocks, children."""
    m, c = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1)
    y, x, first_at = corner(m, H, W, HO, WO, I, STRIDE, PAD)
    _, _, shift, inside = _place(c, y, x, m < rows, H, W, I, PAD, KS, 1)
    d, j = tl.arange(0, BD), tl.arange(0, BJ)
    pose = tl.load(
        poses + ((first_at + shift) * D)[:, None] + d[None, :],
        inside[:, None] & (d < D)[None, :], other=0.0,
    ).to(CAST)  # fmt: skip
    route = tl.load(
        route_weight + (c % N * D + d)[:, None] * J + j[None, :],
        (d < D)[:, None] & (j < J)[None, :], other=0.0,
    ).to(CAST)  # fmt: skip
    bias = tl.load(route_bias + c % N * J + j, j < J, other=-float("inf")).to(tl.float32)
    logits = tl.dot(pose, route, input_precision=P) + bias[None, :]
    share = tl.exp(logits - tl.max(logits, 1)[:, None])
    share *= (1.0 / tl.sum(share, 1))[:, None]
    to = shares + (j * C + c)[None, :] * pitch + m[:, None]
    tl.store(to, share, (m < pitch)[:, None] & (j < J)[None, :])


@triton.jit
def gather(
    shares, poses, activations, weight, mass, sums, rows, pitch,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, I: tl.constexpr,
    C: tl.constexpr, N: tl.constexpr, KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, JB: tl.constexpr,
    CHUNK: tl.constexpr, CAST: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Sums over children. Grid: row blocks, parents / JB, ranges of CHUNK blocks of children."""
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    first, part = tl.program_id(1) * JB, tl.program_id(2)
    y, x, first_at = corner(m, H, W, HO, WO, I, STRIDE, PAD)
    n, e, i = tl.arange(0, BC * BD), tl.arange(0, BE), tl.arange(0, BC)
    d, live = n % BD, m < rows
    totals, masses = (), ()
    for k in tl.static_range(JB):
        totals = totals + (tl.zeros((BM, BE), tl.float32),)
        masses = masses + (tl.zeros((BM, BC), tl.float32),)
    for step in range(CHUNK):
        t, c, shift, inside = _place(part * CHUNK + step, y, x, live, H, W, I, PAD, KS, BC)
        at = first_at + shift
        exists = (t + n // BD < I) & (d < D) & (c < C)
        pose = tl.load(
            poses + (at * D)[:, None] + (n // BD * D + d)[None, :],
            inside[:, None] & exists[None, :], other=0.0,
        ).to(tl.float32)  # fmt: skip
        known = (t + i < I) & (c < C)
        active = tl.load(
            activations + at[:, None] + i[None, :], inside[:, None] & known[None, :], other=0.0
        ).to(tl.float32)
        pose = tl.reshape(pose, (BM, BC, BD)) * active[:, :, None]
        new_totals, new_masses = (), ()
        for k in tl.static_range(JB):
            j = first + k
            share = tl.load(
                shares + (j * C + c + i)[None, :] * pitch + m[:, None],
                live[:, None] & known[None, :] & (j < J), other=0.0,
            ).to(tl.float32)  # fmt: skip
            w = tl.load(
                weight + (((c + n // BD) % N * J + j) * D + d)[:, None] * E + e[None, :],
                exists[:, None] & (e < E)[None, :] & (j < J), other=0.0,
            ).to(CAST)  # fmt: skip
            weighed = tl.reshape((pose * share[:, :, None]).to(CAST), (BM, BC * BD))
            new_totals = new_totals + (tl.dot(weighed, w, totals[k], input_precision=P),)
            new_masses = new_masses + (masses[k] + share * active,)
        totals, masses = new_totals, new_masses
    for k in tl.static_range(JB):
        parent = (part * rows + m) * J + first + k
        to = sums + parent[:, None] * E + e[None, :]
        tl.store(to, totals[k], live[:, None] & (e < E)[None, :] & (first + k < J))
        tl.store(mass + parent, tl.sum(masses[k], 1), live & (first + k < J))


@triton.jit
def to_shares(
    shares, poses, activations, weight, grad0, grad1, d_shares, d_poses, mean, rows, pitch,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, I: tl.constexpr,
    C: tl.constexpr, N: tl.constexpr, KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    J: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr,
    CL: tl.constexpr, DL: tl.constexpr, CAST: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """q, its mean, and what the poses' gradient has from the votes. Grid: row blocks, child blocks.

    d_poses [rows,C,D], mean [C,rows]
    """
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    y, x, first_at = corner(m, H, W, HO, WO, I, STRIDE, PAD)
    live = m < rows
    t, c, shift, inside = _place(tl.program_id(1), y, x, live, H, W, I, PAD, KS, BC)
    at = first_at + shift
    n, d = columns(tl.arange(0, BC * BD), BD, CL, DL)
    e = tl.arange(0, BE)
    exists = (t + n < I) & (d < D)
    pose = tl.load(
        poses + (at * D)[:, None] + (n * D + d)[None, :], inside[:, None] & exists[None, :],
        other=0.0,
    ).to(tl.float32)  # fmt: skip
    i = child_block(BC, CL)
    m3, known = m[:, None, None], live[:, None, None] & (t + i < I)
    active = tl.load(
        activations + at[:, None, None] + i, inside[:, None, None] & (t + i < I), other=0.0
    ).to(tl.float32)
    s_at = (c + i) * pitch + m3
    g_at, g_mask = m[:, None] * (J * E) + e[None, :], live[:, None] & (e < E)[None, :]
    w_at = ((c + n) % N * (J * D * E) + d * E)[None, :] + e[:, None]
    w_mask = exists[None, :] & (e < E)[:, None]
    d_x = tl.zeros((BM, BC * BD), tl.float32)
    average = tl.zeros((BM, BC // CL, CL), tl.float32)
    for j in range(J):
        g = tl.load(grad1 + g_at + j * E, g_mask, other=0.0).to(CAST)
        wt = tl.load(weight + w_at + j * (D * E), w_mask, other=0.0).to(CAST)
        share = tl.load(shares + s_at + j * (C * pitch), known, other=0.0).to(tl.float32)
        g0 = tl.load(grad0 + m3 * J + j, live[:, None, None], other=0.0)
        h = tl.dot(g, wt, input_precision=P)
        gain = over_poses(pose * h, BM, 1, BC, BD, CL, DL) + g0
        tl.store(d_shares + s_at + j * (C * pitch), gain, known)
        average += share * gain
        d_x += to_poses(share, BM, 1, BC, BD, CL, DL) * h
    d_x *= to_poses(active, BM, 1, BC, BD, CL, DL)
    to = d_poses + (m * C + c)[:, None] * D + (n * D + d)[None, :]
    tl.store(to, d_x, live[:, None] & exists[None, :])
    tl.store(mean + s_at, average, known)


@triton.jit
def to_routes(
    shares, d_shares, mean, poses, activations, route_weight, d_poses, d_route, d_bias,
    rows, pitch,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, I: tl.constexpr,
    C: tl.constexpr, N: tl.constexpr, KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    J: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BJ: tl.constexpr, BD: tl.constexpr, CHUNK: tl.constexpr,
    CAST: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Gradients of the routes; adds their part to d_poses. Grid: children, ranges of rows."""
    c, part = tl.program_id(0), tl.program_id(1)
    d, j = tl.arange(0, BD), tl.arange(0, BJ)
    route = tl.load(
        route_weight + (c % N * D + d)[None, :] * J + j[:, None],
        (d < D)[None, :] & (j < J)[:, None], other=0.0,
    ).to(CAST)  # fmt: skip
    to_weight = tl.zeros((BJ, BD), tl.float32)
    to_bias = tl.zeros((BJ, BM), tl.float32)
    for step in range(CHUNK):
        m = (part * CHUNK + step) * BM + tl.arange(0, BM)
        y, x, first_at = corner(m, H, W, HO, WO, I, STRIDE, PAD)
        live = m < rows
        _, _, shift, inside = _place(c, y, x, live, H, W, I, PAD, KS, 1)
        at = first_at + shift
        pose = tl.load(
            poses + (at * D)[:, None] + d[None, :], inside[:, None] & (d < D)[None, :], other=0.0
        ).to(CAST)
        active = tl.load(activations + at, inside, other=0.0).to(tl.float32)
        s_at, s_mask = (j * C + c)[:, None] * pitch + m[None, :], live[None, :] & (j < J)[:, None]
        share = tl.load(shares + s_at, s_mask, other=0.0).to(tl.float32)
        gain = tl.load(d_shares + s_at, s_mask, other=0.0).to(tl.float32)
        average = tl.load(mean + c * pitch + m, live, other=0.0)
        d_logit = share * (gain - average[None, :]) * active[None, :]
        to_bias += d_logit
        d_logit = d_logit.to(CAST)
        to = d_poses + (m * C + c)[:, None] * D + d[None, :]
        mask = live[:, None] & (d < D)[None, :]
        d_x = tl.load(to, mask, other=0.0)
        d_x += tl.dot(tl.trans(d_logit), route, input_precision=P)
        tl.store(to, d_x, mask)
        to_weight = tl.dot(d_logit, pose, to_weight, input_precision=P)
    to = d_route + ((part * C + c) * D + d)[None, :] * J + j[:, None]
    tl.store(to, to_weight, (d < D)[None, :] & (j < J)[:, None])
    tl.store(d_bias + (part * C + c) * J + j, tl.sum(to_bias, 1), j < J)


@triton.jit
def scale(
    poses, activations, scaled, rows, pitch,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, I: tl.constexpr,
    C: tl.constexpr, KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """a x of each child. Grid: row blocks, children."""
    m, c = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1)
    y, x, first_at = corner(m, H, W, HO, WO, I, STRIDE, PAD)
    _, _, shift, inside = _place(c, y, x, m < rows, H, W, I, PAD, KS, 1)
    d, at = tl.arange(0, BD), first_at + shift
    pose = tl.load(
        poses + (at * D)[:, None] + d[None, :], inside[:, None] & (d < D)[None, :], other=0.0
    ).to(tl.float32)
    active = tl.load(activations + at, inside, other=0.0).to(tl.float32)
    to = scaled + (c * D + d)[None, :] * pitch + m[:, None]
    tl.store(to, pose * active[:, None], (m < pitch)[:, None] & (d < D)[None, :])


@triton.jit
def to_transforms(
    shares, scaled, grad1, d_weight, rows, pitch,
    C: tl.constexpr, J: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    BM: tl.constexpr, BC: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, JB: tl.constexpr,
    CHUNK: tl.constexpr, CAST: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Gradients of each child's transforms. Grid: blocks of children, parents / JB, row ranges."""
    first, part = tl.program_id(1) * JB, tl.program_id(2)
    n, e = tl.arange(0, BC * BD), tl.arange(0, BE)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    cn, d = tl.program_id(0) * BC + n // BD, n % BD
    exists = (cn < C) & (d < D)
    totals = ()
    for k in tl.static_range(JB):
        totals = totals + (tl.zeros((BC * BD, BE), tl.float32),)
    for step in range(CHUNK):
        m = (part * CHUNK + step) * BM + tl.arange(0, BM)
        live = m < rows
        pose = tl.load(
            scaled + (cn * D + d)[:, None] * pitch + m[None, :],
            live[None, :] & exists[:, None], other=0.0,
        ).to(CAST)  # fmt: skip
        pose = tl.reshape(pose, (BC, BD, BM))
        new_totals = ()
        for k in tl.static_range(JB):
            j = first + k
            share = tl.load(
                shares + (j * C + c)[:, None] * pitch + m[None, :],
                live[None, :] & (c < C)[:, None] & (j < J), other=0.0,
            ).to(CAST)  # fmt: skip
            g = tl.load(
                grad1 + (m * J + j)[:, None] * E + e[None, :],
                live[:, None] & (e < E)[None, :] & (j < J), other=0.0,
            ).to(CAST)  # fmt: skip
            weighed = tl.reshape(pose * share[:, None, :], (BC * BD, BM))
            new_totals = new_totals + (tl.dot(weighed, g, totals[k], input_precision=P),)
        totals = new_totals
    for k in tl.static_range(JB):
        to = ((part * C + cn) * J + first + k) * (D * E) + d * E
        mask = exists[:, None] & (e < E)[None, :] & (first + k < J)
        tl.store(d_weight + to[:, None] + e[None, :], totals[k], mask)


TILES = {
    "couple": (Tile(128, 0, 4, 1), Tile(128, 0, 4, 1)),
    "gather": (Tile(64, 64, 2, 2, 4), Tile(32, 64, 2, 3, 4)),
    "to_shares": (Tile(64, 128, 4, 1), Tile(64, 128, 4, 1)),
    "to_routes": (Tile(64, 0, 2, 2), Tile(128, 0, 2, 2)),
    "scale": (Tile(64, 0, 4, 1), Tile(64, 0, 4, 1)),
    "to_transforms": (Tile(64, 64, 2, 3, 4), Tile(64, 64, 2, 3, 4)),
}
"""Tile of each kernel, for float32 and for 16-bit types; measured, see docs/lab-notes/speed.md."""
OF_GRID = ("H", "W", "HO", "WO", "KS", "STRIDE", "PAD")


def options(kernel: str, shape: Shape, poses: Tensor) -> dict[str, Any]:
    sizes, rows_alone = shape.constants(), kernel == "to_transforms"
    t = TILES[kernel][poses.element_size() == 2]
    wide, out = pow2(shape.in_dim), max(16, pow2(shape.out_dim))
    constants = {n: sizes[n] for n in ("C", "D", *(() if rows_alone else ("I", *OF_GRID)))}
    constants |= {"BM": t.rows, "num_warps": t.warps, "num_stages": t.stages}
    if kernel == "scale":
        return {**constants, "BD": wide}
    constants |= {"J": shape.parents, **arithmetic(poses)}
    if not rows_alone:
        constants["N"] = shape.transforms
    if kernel in ("couple", "to_routes"):
        many = max(16, pow2(shape.parents))
        most = 8192 if kernel == "couple" else 4096  # entries of a tile of shares
        constants |= {"BD": max(16, wide), "BJ": many, "BM": max(16, min(t.rows, most // many))}
        exact = {"CAST": tl.float32, "P": "tf32x3"}  # shares of large logits need it
        return constants | exact if kernel == "couple" else constants
    block = max(1, 16 // wide, min(pow2(shape.types), t.columns // wide))
    constants |= {"E": shape.out_dim, "BC": block, "BD": wide, "BE": out}
    if kernel == "to_shares":
        return {**constants, "CL": min(4, block), "DL": min(2, wide)}
    parents = min(max(1, t.parents * 16 // out), pow2(shape.parents))
    lines = block * wide if kernel == "gather" else t.rows  # of a parent's operand
    stage = poses.element_size() * (t.rows * block * wide + parents * lines * out)
    return {**constants, "JB": parents, "num_stages": stages(t.stages, stage)}


def share_type(poses: Tensor) -> torch.dtype:
    """Type of stored shares: they are between 0 and 1, and float16 rounds them as tf32 does."""
    if poses.dtype != torch.float32:
        return poses.dtype
    return torch.float32 if arithmetic(poses)["P"] == "tf32x3" else torch.float16


def stored(shape: Shape, poses: Tensor) -> Tensor:
    """Space for shares [J,C,rows]; rows are padded, so that each child's begin at whole sectors."""
    size = shape.parents, shape.children, cdiv(shape.rows, 64) * 64
    return poses.new_empty(size, dtype=share_type(poses))


def forward(shape: Shape, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """-> sums of shares [rows,J] and of votes [rows,J,E]; shares"""
    poses, weight, activations = inputs[:3]
    rows, parents = shape.rows, shape.parents
    shares = stored(shape, poses)
    pitch = shares.shape[2]
    o = options("couple", shape, poses)
    couple[(cdiv(rows, o["BM"]), shape.children)](
        poses, inputs.route_weight, inputs.route_bias, shares, rows, pitch, **o
    )
    o = options("gather", shape, poses)
    blocks = shape.kernel**2 * cdiv(shape.types, o["BC"])
    grid = cdiv(rows, o["BM"]), cdiv(parents, o["JB"])
    ranges, o["CHUNK"] = split(blocks, grid[0] * grid[1], poses.device)
    mass = poses.new_empty((ranges, rows, parents), dtype=torch.float32)
    sums = poses.new_empty((ranges, rows, parents, shape.out_dim), dtype=torch.float32)
    gather[(*grid, ranges)](shares, poses, activations, weight, mass, sums, rows, pitch, **o)
    return total(mass), total(sums), shares


def _to_transforms(
    shape: Shape, shares: Tensor, grad1: Tensor, poses: Tensor, activations: Tensor | None
) -> Tensor:
    """Gradients of each child's transforms. -> [ranges,C,J,D,E]"""
    rows, children, pitch = shape.rows, shape.children, shares.shape[2]
    scaled = poses.new_empty((children, shape.in_dim, pitch))
    o = options("scale", shape, poses)
    scale[(cdiv(pitch, o["BM"]), children)](poses, activations, scaled, rows, pitch, **o)
    o = options("to_transforms", shape, poses)
    grid = cdiv(children, o["BC"]), cdiv(shape.parents, o["JB"])
    ranges, o["CHUNK"] = split(cdiv(rows, o["BM"]), grid[0] * grid[1], poses.device)
    size = ranges, children, shape.parents, shape.in_dim, shape.out_dim
    d_weight = poses.new_empty(size, dtype=torch.float32)
    to_transforms[(*grid, ranges)](shares, scaled, grad1, d_weight, rows, pitch, **o)
    return d_weight


def backward(shape: Shape, grads: tuple[Tensor, Tensor], shares: Tensor, inputs: Inputs) -> Inputs:
    """Gradients of the inputs. grads: of the sums of shares [rows,J] and of votes [rows,J,E]"""
    poses, weight, activations, *_, route_weight, route_bias = inputs
    assert route_weight is not None and route_bias is not None
    d_weight = _to_transforms(shape, shares, grads[1], poses, activations)
    rows, parents, children = shape.rows, shape.parents, shape.children
    pitch, f32 = shares.shape[2], torch.float32
    d_shares = torch.empty_like(shares, dtype=poses.dtype)
    d_windows = poses.new_empty((rows, children, shape.in_dim), dtype=f32)
    mean = poses.new_empty((children, pitch), dtype=f32)
    o = options("to_shares", shape, poses)
    blocks = shape.kernel**2 * cdiv(shape.types, o["BC"])
    to_shares[(cdiv(rows, o["BM"]), blocks)](
        shares, poses, activations, weight, *grads, d_shares, d_windows, mean, rows, pitch, **o
    )
    o = options("to_routes", shape, poses)
    ranges, o["CHUNK"] = split(cdiv(rows, o["BM"]), children, poses.device)
    d_route = poses.new_empty((ranges, children, shape.in_dim, parents), dtype=f32)
    d_bias = poses.new_empty((ranges, children, parents), dtype=f32)
    to_routes[(children, ranges)](
        shares, d_shares, mean, poses, activations, route_weight, d_windows, d_route, d_bias,
        rows, pitch, **o,
    )  # fmt: skip
    del d_shares
    return Inputs(
        shape.fold(d_windows[None], poses.dtype),
        _over_children(d_weight, weight),
        shape.fold(mean[:, :rows].mT.contiguous()[None]),
        route_weight=_over_children(d_route, route_weight),
        route_bias=_over_children(d_bias, route_bias),
    )


def _over_children(copies: Tensor, like: Tensor) -> Tensor:
    """Sum over ranges and over the children that share one. [ranges,C,...] -> [N,...]"""
    return total(copies.reshape(-1, *like.shape))
