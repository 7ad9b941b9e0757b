"""Windows on a grid of capsules, and the votes of their children."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.errors import TorchcapsError


@dataclass(frozen=True)
class Window:
    """Children of a parent: K x K positions of the grid below, every `stride` positions.

    >>> Window(kernel=3, stride=2).out(7)  # positions of the parents
    3
    """

    kernel: int = 3
    stride: int = 1
    padding: int = 0

    def __post_init__(self):
        if self.kernel < 1 or self.stride < 1 or self.padding < 0:
            raise TorchcapsError(
                f"{self}: give a kernel and stride of at least 1, padding of at least 0."
            )

    def out(self, side: int) -> int:
        """Side of the parents' grid for a children's grid of this side."""
        size = (side + 2 * self.padding - self.kernel) // self.stride + 1
        if size < 1:
            raise TorchcapsError(f"{self} does not fit on a grid of side {side}.")
        return size


def unfold(grid: Tensor, window: Window) -> Tensor:
    """Children of every window; positions outside the grid are zero.

    grid [B,H,W,I,D] -> [B,H',W',K*K*I,D], children ordered by (row, column, type)

    >>> unfold(torch.rand(2, 7, 7, 4, 8), Window(3, stride=2)).shape
    torch.Size([2, 3, 3, 36, 8])
    """
    k, s, p = window.kernel, window.stride, window.padding
    _ = window.out(grid.shape[1]), window.out(grid.shape[2])  # raises if the window does not fit
    padded = F.pad(grid, (0, 0, 0, 0, p, p, p, p))
    windows = padded.unfold(1, k, s).unfold(2, k, s)  # [B,H',W',I,D,K,K]
    return windows.permute(0, 1, 2, 5, 6, 3, 4).flatten(3, 5)


def form_votes(poses: Tensor, weight: Tensor) -> Tensor:
    """Votes: each child's prediction of each parent's pose.

    poses [B,I,R*D], weight [N,J,D,E] -> votes [B,I,J,R*E]

    R=1: vector poses; otherwise the pose is a matrix of R rows, multiplied by the transform. Child
    i uses transform i modulo N: N=I is one transform per child, N=1 one for all, and a number of
    types between them shares transforms over positions.

    >>> poses, weight = torch.rand(2, 6, 4), torch.rand(6, 3, 4, 5)
    >>> form_votes(poses, weight).shape  # [B,I,J,E]
    torch.Size([2, 6, 3, 5])
    """
    batch, in_caps, dim = poses.shape
    num, out_caps, in_dim, out_dim = weight.shape
    check_sizes(in_caps, dim, weight)
    if num not in (1, in_caps):
        weight = weight.repeat(in_caps // num, 1, 1, 1)
    rows = poses.reshape(batch, in_caps, dim // in_dim, in_dim)
    votes = torch.einsum("bipd,ijde->bijpe", rows, weight.expand(in_caps, -1, -1, -1))
    return votes.reshape(batch, in_caps, out_caps, dim // in_dim * out_dim)


def check_sizes(in_caps: int, dim: int, weight: Tensor) -> None:
    if weight.dim() != 4:
        raise TorchcapsError(f"weight has shape {list(weight.shape)}; routing needs [I,J,D,E].")
    if in_caps % weight.shape[0]:
        raise TorchcapsError(
            f"{weight.shape[0]} transforms for {in_caps} children: give one per child, or a number "
            "that divides the children."
        )
    if dim % weight.shape[2]:
        raise TorchcapsError(
            f"Poses of {dim} entries do not split into rows of {weight.shape[2]}, the input size "
            f"of the transforms (weight {list(weight.shape)})."
        )


def add_coordinates(
    poses: Tensor, weight: Tensor, *, to: Literal["column", "first"] = "column"
) -> tuple[Tensor, Tensor]:
    """Add the child's position to its votes (EM's coordinate addition).

    poses [B,H,W,I,R*D], weight [N,J,D,E] -> the same with a larger D

    Row and column, in [0,1], are added to the first two entries of the last column of a matrix
    vote (as in EM's text), or to the first two entries of a vector vote. With to="first" matrices
    are like vectors, as in the code of EM's authors. They are extra entries of the pose that meet
    ones in the transform, so every routing and kernel supports them.

    >>> poses, weight = torch.rand(2, 7, 7, 3, 4), torch.rand(3, 5, 4, 8)
    >>> poses, weight = add_coordinates(poses, weight)
    >>> poses.shape, weight.shape
    (torch.Size([2, 7, 7, 3, 6]), torch.Size([3, 5, 6, 8]))
    """
    batch, height, width, types, dim = poses.shape
    num, out_caps, in_dim, out_dim = weight.shape
    rows = dim // in_dim
    y = (torch.arange(height, device=poses.device, dtype=poses.dtype) + 0.5) / height
    x = (torch.arange(width, device=poses.device, dtype=poses.dtype) + 0.5) / width
    position = torch.stack(torch.meshgrid(y, x, indexing="ij"), -1)
    if rows == 1 or to == "first":
        extra = position[:, :, None, None, :].expand(height, width, types, 1, 2)
        extra = F.pad(extra, (0, 0, 0, rows - 1))
        ones = torch.eye(2, out_dim, device=poses.device, dtype=weight.dtype)
    else:
        extra = F.pad(position, (0, rows - 2))[:, :, None, :, None].expand(-1, -1, types, -1, 1)
        ones = F.one_hot(torch.tensor([out_dim - 1], device=poses.device), out_dim)
        ones = ones.to(weight.dtype)
    table = poses.reshape(batch, height, width, types, rows, in_dim)
    table = torch.cat([table, extra.expand(batch, *extra.shape)], -1).flatten(-2)
    ones = ones.expand(num, out_caps, *ones.shape)
    return table, torch.cat([weight, ones], 2)
