"""Block sizes and launches of the kernels in `attention`."""

import torch
from torch import Tensor

from torchcaps.kernels import attention
from torchcaps.kernels.shape import (
    Shape,
    Tile,
    arithmetic,
    cdiv,
    pow2,
    split,
    stages,
    total,
)

SCORES = {"uniform": 0, "dot": 1, "linear": 2}


def tile(shape: Shape, score: str, part: str) -> Tile:
    """Measured on an H200; see docs/gpu.md. Many parents pay for wider tiles."""
    many = shape.parents > 32
    if part == "stats":
        return Tile(64, 128 if many or score == "linear" else 64, 4, 3)
    if part == "gather":
        if score == "linear":
            return Tile(32, 64, 2, 3, 4)
        if many and shape.rows >= 128 and pow2(shape.out_dim) <= 16:
            return Tile(128, 64, 8, 3, 4)
        return Tile(64, 64, 4, 3, 2)
    if score == "linear":
        # wider without windows: matrix poses, and what is too large for the kernels in `shares`
        return Tile(32, 64 if shape.covers else 32, 2, 3)
    return Tile(64, 64 if many or score == "uniform" else 32, 4, 3)


def options(shape: Shape, t: Tile, score: str, poses: Tensor) -> dict:
    wide, out = pow2(shape.in_dim), max(16, pow2(shape.out_dim))
    rows = pow2(shape.pose_rows)
    block = max(1, 16 // wide, min(pow2(shape.children), t.columns // wide))
    operands, product = 4 * out * (2 * block * wide * t.parents), 4 * t.rows * block * wide
    return {
        **shape.constants(),
        **arithmetic(poses),
        "SCORE": SCORES[score],
        "RP": rows,
        "BM": t.rows,
        "BD": wide,
        "BC": block,
        "BE": out,
        "CL": min(4, block),
        "DL": min(2, wide),
        "num_warps": t.warps,
        "num_stages": stages(t.stages, operands + 8 * t.rows * out + product, product),
    }


def forward(
    shape: Shape,
    score: str,
    poses: Tensor,
    weight: Tensor,
    activations: Tensor | None,
    query: Tensor | None,
    route_weight: Tensor | None,
    route_bias: Tensor | None,
    with_coupling: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """sums of shares [rows,J] and of votes [rows,J,R,E]; log-denominators; coupling

    coupling [rows,J,C]: children lie together, as they are written
    """
    f32, new = torch.float32, poses.new_empty
    whole = (shape.rows, shape.children)
    lse = new((0,) if score == "uniform" else whole, dtype=f32)
    scored = (query, route_weight, route_bias, lse)
    if score != "uniform":
        o = options(shape, tile(shape, score, "stats"), score, poses)
        grid = (cdiv(shape.rows, o["BM"] // o["RP"]), cdiv(shape.children, o["BC"]))
        attention.stats[grid](poses, weight, *scored, shape.rows, **o)
    t = tile(shape, score, "gather")
    o = options(shape, t, score, poses)
    parents = min(t.parents, shape.parents)
    rows, groups = cdiv(shape.rows, t.rows // o["RP"]), cdiv(shape.parents, parents)
    splits, chunk = split(cdiv(shape.children, o["BC"]), rows * groups, poses.device, most=32)
    weighted = activations is not None
    sum1 = new((splits, shape.rows, shape.parents, shape.pose_rows, shape.out_dim), dtype=f32)
    sum0 = new((splits, shape.rows, shape.parents) if weighted else (1, 0), dtype=f32)
    coupling = new(
        (shape.rows, shape.parents, shape.children) if with_coupling else (0,), dtype=f32
    )
    o |= {"JB": parents, "CHUNK": chunk, "WEIGHTED": weighted, "WITH_COUPLING": with_coupling}
    attention.gather[(rows, groups, splits)](
        poses, weight, activations, *scored, sum0, sum1, coupling, shape.rows, **o
    )
    return total(sum0), total(sum1), lse, coupling


def backward(
    shape: Shape,
    score: str,
    deterministic: bool,
    grad0: Tensor,
    grad1: Tensor,
    lse: Tensor,
    poses: Tensor,
    weight: Tensor,
    activations: Tensor | None,
    query: Tensor | None,
    route_weight: Tensor | None,
    route_bias: Tensor | None,
) -> tuple[Tensor, ...]:
    """Gradients of the six tensors in their order; empty for those that are not there."""
    t = tile(shape, score, "backward")
    o = options(shape, t, score, poses)
    row_blocks = cdiv(shape.rows, t.rows // o["RP"])
    blocks = cdiv(shape.children, o["BC"])
    weight_slots, query_slots = (row_blocks, blocks) if deterministic else (1, 1)
    f32, new, zeros = torch.float32, poses.new_empty, poses.new_zeros

    def slots(number: int, like: Tensor | None) -> Tensor:
        return zeros((1, 0) if like is None else (number, *like.shape), dtype=f32)

    d_poses = (new if shape.covers else zeros)((shape.copies, *poses.shape), dtype=f32)
    d_weight, d_query = slots(weight_slots, weight), slots(query_slots, query)
    d_route, d_bias = slots(weight_slots, route_weight), slots(weight_slots, route_bias)
    weighted = activations is not None
    o["WEIGHTED"] = weighted
    spread = new((shape.rows, shape.children) if weighted else (0,), dtype=f32)
    attention.backward[(row_blocks, blocks)](
        poses, weight, activations, query, route_weight, route_bias, lse, grad0, grad1,
        d_poses, d_weight, spread, d_query, d_route, d_bias,
        d_poses.stride(0), d_weight.stride(0), d_query.stride(0), weight_slots, query_slots,
        shape.rows, **o,
    )  # fmt: skip
    return (
        total(d_poses),
        total(d_weight),
        shape.fold(spread) if weighted else spread,
        total(d_query),
        total(d_route),
        total(d_bias),
    )
