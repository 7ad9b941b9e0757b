"""Block sizes and launches of the kernels in `votes`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from torchcaps.kernels import votes
from torchcaps.kernels.shape import Shape, arithmetic, cdiv, multiprocessors, pow2, stages, total

SCORES = {"dot": 0, "gauss": 1}


@dataclass(frozen=True)
class Plan:
    rows: int
    parents: int
    """Parents that a program holds; fewer than all mean a first run for the denominators."""
    warps: int
    stages: int
    splits: int
    """Ranges of children that run side by side, each with its own sums."""


def plan(shape: Shape, score: str, backward: bool, sms: int) -> Plan:
    """Measured on an H200 at 16x16x32 -> 7x7x32 of 4x4 poses; see docs/gpu.md."""
    wide = pow2(shape.out_dim)
    # Entries of parent poses that a program holds for each of its 16 rows.
    most = 256 if backward else 512
    most = max(1, most // (shape.pose_rows * wide))
    parents = max(16 // wide, 1, min(pow2(shape.parents), 1 << (most.bit_length() - 1)))
    warps = 8 if score == "gauss" else 4
    deep = 3 if backward or score == "gauss" else 2
    grid = cdiv(shape.rows, 16) * cdiv(shape.parents, parents)
    per_sm = 4 if backward or score == "gauss" else 8
    splits = max(1, min(64, shape.children, per_sm * sms // grid))
    return Plan(16, parents, warps, deep, splits)


def options(shape: Shape, p: Plan, score: str, weighted: bool, poses: Tensor) -> dict:
    wide, deep = pow2(shape.out_dim), max(16, pow2(shape.in_dim))
    low = min(8, wide)
    columns = 4 * p.parents * wide
    held = 2 * columns * pow2(shape.pose_rows) * p.rows
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
        "num_stages": stages(p.stages, 2 * columns * deep, held),
    }


def forward(
    shape: Shape,
    score: str,
    poses: Tensor,
    weight: Tensor,
    activations: Tensor | None,
    query: Tensor,
    precision: Tensor | None,
    bias: Tensor | None,
    with_coupling: bool,
    across: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """sums of shares [rows,J], of votes and of squares [rows,J,R,E]; log-denominators; coupling

    coupling [rows,J,C]: children lie together, as they are written
    across: the denominator of a child is that of all windows which see it
    """
    p = plan(shape, score, False, multiprocessors(poses.device))
    weighted = activations is not None
    new, f32 = poses.new_empty, torch.float32
    parents = (p.splits, shape.rows, shape.parents, shape.pose_rows, shape.out_dim)
    sum0 = new(parents[:3] if weighted else (1, 0), dtype=f32)
    sum1 = new(parents, dtype=f32)
    sum2 = new(parents if score == "gauss" else (1, 0), dtype=f32)
    whole = (shape.rows, shape.children)
    coupling = new(
        (shape.rows, shape.parents, shape.children) if with_coupling else (0,), dtype=f32
    )
    tensors = (poses, weight, activations, query, precision, bias)
    sums = (sum0, sum1, sum2, coupling, shape.rows)
    common = options(shape, p, score, weighted, poses)
    blocks = cdiv(shape.parents, p.parents)
    grid = (cdiv(shape.rows, p.rows), p.splits, blocks)
    lse = new(whole, dtype=f32)
    known = blocks > 1 or across
    if known:
        parts = new((blocks, *whole), dtype=f32)
        common |= {"WITH_LSE": False, "STATS": True, "WITH_COUPLING": False}
        votes.forward[grid](*tensors, parts, *sums, **common)
        lse = parts[0] if blocks == 1 else parts.logsumexp(0)
        lse = shape.over_windows(lse) if across else lse
    common |= {"WITH_LSE": known, "STATS": False, "WITH_COUPLING": with_coupling}
    votes.forward[grid](*tensors, lse, *sums, **common)
    return total(sum0), total(sum1), total(sum2), lse, coupling


def backward(
    shape: Shape,
    score: str,
    deterministic: bool,
    grads: tuple[Tensor, Tensor, Tensor],
    lse: Tensor,
    poses: Tensor,
    weight: Tensor,
    activations: Tensor | None,
    query: Tensor,
    precision: Tensor | None,
    bias: Tensor | None,
    across: bool,
) -> tuple[Tensor, ...]:
    """Gradients of the six tensors in their order; empty for those that are not there.

    Where windows compete, what softmax subtracts is the sum over all that see the child.
    """
    p = plan(shape, score, True, multiprocessors(poses.device))
    blocks = cdiv(shape.parents, p.parents)
    weighted = activations is not None
    row_blocks = cdiv(shape.rows, p.rows)
    slots = row_blocks if deterministic else 1
    f32, new, zeros = torch.float32, poses.new_empty, poses.new_zeros
    parents = (p.splits, shape.rows, shape.parents, shape.pose_rows, shape.out_dim)
    whole = (shape.rows, shape.children)
    d_poses = (new if shape.covers else zeros)((shape.copies, blocks, *poses.shape), dtype=f32)
    d_weight = zeros((slots, *weight.shape), dtype=f32)
    d_query = new(parents, dtype=f32)
    d_precision = new(parents if precision is not None else (1, 0), dtype=f32)
    d_bias = new(parents[:3] if bias is not None else (1, 0), dtype=f32)
    spread = new(whole if weighted else (0,), dtype=f32)
    tensors = (poses, weight, activations, query, precision, bias, lse, *grads)
    outputs = (d_poses, d_weight, d_query, d_precision, d_bias, shape.rows)
    strides = (d_poses.stride(0), d_poses.stride(1), d_weight.stride(0), slots)
    common = options(shape, p, score, weighted, poses)
    common["G"] = min(p.warps, max(1, p.parents * common["BE"] // 16))
    common["RP"] = pow2(shape.pose_rows)
    grid = (row_blocks, p.splits, blocks)
    known = blocks > 1 or across
    if known:
        parts = new((blocks, *whole), dtype=f32)
        common |= {"WHOLE": False, "STATS": True}
        votes.backward[grid](*tensors, parts, *outputs, *strides, **common)
        spread = total(parts)
    d_activations = shape.fold(spread) if across else spread
    mean = shape.unfold(d_activations, 0.0) if across else spread
    common |= {"WHOLE": not known, "STATS": False}
    votes.backward[grid](*tensors, mean, *outputs, *strides, **common)
    if weighted and not across:  # where it was not known before, it is now
        d_activations = shape.fold(spread)
    return (
        total(d_poses.flatten(0, 1)),
        total(d_weight),
        d_activations,
        total(d_query),
        total(d_precision),
        total(d_bias),
    )
