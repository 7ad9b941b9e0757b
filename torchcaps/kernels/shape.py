"""Sizes of one fused step, and what both kernels derive from them."""

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """Rows are batch x positions of the parents."""

    batch: int
    height: int
    width: int
    types: int
    kernel: int
    stride: int
    padding: int
    pose_rows: int
    in_dim: int
    parents: int
    out_dim: int
    transforms: int

    @property
    def out_height(self) -> int:
        return (self.height + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def out_width(self) -> int:
        return (self.width + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def rows(self) -> int:
        return self.batch * self.out_height * self.out_width

    @property
    def children(self) -> int:
        return self.kernel**2 * self.types

    @property
    def copies(self) -> int:
        """Copies of a pose's gradient, which is at another place of each window that sees it."""
        return (-(-self.kernel // self.stride)) ** 2

    @property
    def covers(self) -> bool:
        """Whether every pose is a child, so that its gradient needs no zero to start from."""
        return self.kernel == 1 and self.stride == 1 and self.padding == 0

    def constants(self) -> dict[str, int]:
        return {
            "H": self.height,
            "W": self.width,
            "HO": self.out_height,
            "WO": self.out_width,
            "I": self.types,
            "J": self.parents,
            "C": self.children,
            "WI": self.transforms,
            "KS": self.kernel,
            "STRIDE": self.stride,
            "PAD": self.padding,
            "R": self.pose_rows,
            "D": self.in_dim,
            "E": self.out_dim,
        }

    def fold(self, spread: Tensor) -> Tensor:
        """Sum of the windows' values at the children they belong to. [rows,C] -> [B,H,W,I]"""
        if self.covers:
            return spread.view(self.batch, self.height, self.width, self.types)
        windows = spread.view(self.batch, -1, self.kernel**2, self.types)
        folded = torch.nn.functional.fold(
            windows.permute(0, 3, 2, 1).flatten(1, 2),
            (self.height, self.width),
            self.kernel,
            padding=self.padding,
            stride=self.stride,
        )
        return folded.permute(0, 2, 3, 1)

    def unfold(self, grid: Tensor, outside: float) -> Tensor:
        """The value of each child of each window. [B,H,W,I] -> [B*H'*W',C]"""
        p, k, s = self.padding, self.kernel, self.stride
        padded = torch.nn.functional.pad(grid, (0, 0, p, p, p, p), value=outside)
        views = padded.unfold(1, k, s).unfold(2, k, s)  # [B,H',W',I,K,K]
        return views.permute(0, 1, 2, 4, 5, 3).reshape(-1, self.children)

    def over_windows(self, lse: Tensor) -> Tensor:
        """Logarithms of the sums, over all windows that see a child, of what these are logarithms
        of; infinite outside the grid. [rows,C] -> [rows,C]
        """
        grid = self.height, self.width, self.types
        slots = self.height * self.width * self.types + 1  # the first one: outside
        places = torch.arange(1, slots, device=lse.device).view(1, *grid)
        slot = self.unfold(places, 0).view(1, -1).expand(self.batch, -1)
        parts = lse.view(self.batch, -1)
        low = lse.new_full((self.batch, slots), -torch.inf)
        top = low.scatter_reduce(1, slot, parts, "amax")
        summed = self.fold((parts - top.gather(1, slot)).exp())
        whole = top[:, 1:].view(-1, *grid) + summed.log()
        return self.unfold(whole, torch.inf)


@dataclass(frozen=True)
class Tile:
    """The tile of a kernel's program, as measured."""

    rows: int
    """Rows of the products: batch x positions x pose rows."""
    columns: int
    """Children x pose entries."""
    warps: int
    stages: int
    parents: int = 1
    """Parents that it takes together."""


def pow2(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def arithmetic(poses: Tensor) -> dict[str, Any]:
    """In which type products are taken: the poses' own, or float32 as torch's setting allows.

    In Triton's interpreter bfloat16 products are silently wrong, so there all is float32.
    """
    interpreted = poses.device.type == "cpu"
    half = poses.dtype in (torch.bfloat16, torch.float16) and not interpreted
    try:
        exact = torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # set through torch's newer names, which this one does not mix with
        exact = torch.backends.cuda.matmul.fp32_precision == "ieee"
    return {
        "CAST": getattr(tl, str(poses.dtype).removeprefix("torch.")) if half else tl.float32,
        "P": "tf32x3" if exact or interpreted else "tf32",
    }


def multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def split(blocks: int, programs: int, device: torch.device, most: int = 64) -> tuple[int, int]:
    """Ranges and blocks of each: a range costs one more copy of the sums, and fills the device."""
    ranges = max(1, min(most, blocks, 2 * multiprocessors(device) // max(1, programs)))
    chunk = max(1, cdiv(blocks, ranges))
    return cdiv(blocks, chunk), chunk


def stages(wanted: int, each: int, fixed: int = 0) -> int:
    """Stages of a pipeline whose buffers fit into shared memory, here and on smaller GPUs."""
    return max(1, min(wanted, (150_000 - fixed) // each))


def total(parts: Tensor) -> Tensor:
    """Sum over the first axis, for free where it has one entry."""
    return parts[0] if parts.shape[0] == 1 else parts.sum(0)
