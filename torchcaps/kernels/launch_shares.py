"""Block sizes and launches of the kernels in `shares`."""

from typing import Any

import torch
from torch import Tensor

from torchcaps.kernels import shares as kernels
from torchcaps.kernels.shape import Tile, arithmetic, cdiv, pow2, split, stages, total

TILES = {
    "gather": Tile(64, 128, 4, 3, 2),
    "to_children": Tile(64, 128, 4, 3),
    "to_transforms": Tile(64, 128, 4, 3, 2),
}
"""Measured on an H200; see docs/gpu.md."""


def options(part: str, poses: Tensor, weight: Tensor) -> dict[str, Any]:
    t, children = TILES[part], poses.shape[1]
    transforms, parents, in_dim, out_dim = weight.shape
    wide, out = pow2(in_dim), max(16, pow2(out_dim))
    limit = transforms if part == "to_transforms" else children
    block = max(1, 16 // wide, min(pow2(limit), t.columns // wide))
    size = poses.element_size()
    loaded = size * (t.rows * block * wide + t.parents * out * (block * wide + t.rows))
    made = {
        **arithmetic(poses),
        "J": parents, "C": children, "N": transforms, "D": in_dim, "E": out_dim,
        "BM": t.rows, "BC": block, "BD": wide, "BE": out,
        "num_warps": t.warps,
        "num_stages": stages(t.stages, loaded, size * t.rows * block * wide),
    }  # fmt: skip
    if part == "to_children":
        return {**made, "CL": min(4, block), "DL": min(2, wide)}
    return {**made, "JB": min(t.parents, pow2(parents))}


def forward(shares: Tensor, poses: Tensor, weight: Tensor) -> Tensor:
    """shares [rows,C/N,J,N], poses [rows,C,D], weight [N,J,D,E] -> sums [rows,J,E]"""
    rows, children, _ = poses.shape
    _, parents, _, out_dim = weight.shape
    o = options("gather", poses, weight)
    grid = cdiv(rows, o["BM"]), cdiv(parents, o["JB"])
    ranges, chunk = split(cdiv(children, o["BC"]), grid[0] * grid[1], poses.device)
    o["CHUNK"] = chunk
    sums = poses.new_empty((ranges, rows, parents, out_dim), dtype=torch.float32)
    kernels.gather[(*grid, ranges)](shares, poses, weight, sums, rows, **o)
    return total(sums)


def backward(
    grad: Tensor, shares: Tensor, poses: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    rows, children, _ = poses.shape
    transforms, parents = weight.shape[:2]
    d_shares, d_poses = torch.empty_like(shares), torch.empty_like(poses)
    o = options("to_children", poses, weight)
    grid = cdiv(rows, o["BM"]), cdiv(children, o["BC"])
    kernels.to_children[grid](shares, poses, weight, grad, d_shares, d_poses, rows, **o)
    o = options("to_transforms", poses, weight)
    grid = cdiv(transforms, o["BC"]), cdiv(parents, o["JB"])
    blocks = cdiv(rows * (children // transforms), o["BM"])
    ranges, chunk = split(blocks, grid[0] * grid[1], poses.device)
    o["CHUNK"] = chunk
    dtype = weight.dtype if ranges == 1 else torch.float32
    d_weight = weight.new_empty((ranges, *weight.shape), dtype=dtype)
    kernels.to_transforms[(*grid, ranges)](shares, poses, grad, d_weight, rows, **o)
    return d_shares, d_poses, total(d_weight).to(weight.dtype)
