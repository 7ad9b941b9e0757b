"""One routing step without votes in memory, and the choice between it and the references.

Every routing here is a loop around one step: score each child's votes, normalise over parents, add
up. `FusedStep` binds what does not change (poses, transforms, window) and leaves the parents' small
state to autograd; `by_rows` runs a reference on windows, a few rows at a time.
"""

import importlib.util
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torchcaps.errors import TorchcapsError
from torchcaps.kernels import ops as ops  # registers the operators
from torchcaps.routing.window import Window, check_sizes, unfold

Impl = Literal["auto", "reference", "triton"]

MEMORY_BUDGET = 1 << 30
"""Bytes of votes that a reference may hold at a time, unless the caller says otherwise."""

_HAS_TRITON = importlib.util.find_spec("triton") is not None


def _interpreted() -> bool:
    from triton import knobs

    return knobs.runtime.interpret


def _why_not(poses: Tensor, weight: Tensor) -> str:
    """Why the kernels cannot serve these tensors; empty where they can."""
    if not _HAS_TRITON:
        return "Triton is not installed"
    if poses.device.type != "cuda" and not _interpreted():
        return f"the poses are on {poses.device.type}, and Triton needs a GPU"
    if poses.dtype == torch.float64 or weight.dtype == torch.float64:
        return "the kernels compute in float32, and these tensors are float64"
    if weight.shape[2] > 128 or poses.shape[-1] // weight.shape[2] * weight.shape[3] > 256:
        return "a child pose has more than 128 columns or a parent pose more than 256 entries"
    if not poses.numel() or not weight.numel():
        return "there are no capsules"
    if max(poses.numel(), weight.numel()) >= 1 << 31:
        return "poses or transforms have 2^31 entries or more"
    if poses.shape[-1] // weight.shape[2] > 8:
        return "a matrix pose has more than 8 rows"
    return ""


def use_kernel(impl: Impl, poses: Tensor, weight: Tensor, window: Window | None) -> bool:
    """Whether the fused step runs; `impl="triton"` on what it cannot do raises with the reason."""
    children = poses.shape[-2] * (1 if window is None else window.kernel**2)
    check_sizes(children, poses.shape[-1], weight)
    if impl == "reference" or (impl == "auto" and poses.device.type != "cuda"):
        return False
    reason = _why_not(poses, weight)
    if reason and impl == "triton":
        raise TorchcapsError(f"impl='triton': {reason}.")
    return not reason


class FusedStep:
    """The step of the kernels on fixed poses and transforms.

    poses [B,I,D], or [B,H,W,I,D] with a window; weight [N,J,D,E]; activations [B,I] or [B,H,W,I].
    Each score returns sums over children: votes [B,J,E] (or [B,H',W',J,E]), and with activations
    their shares too.
    """

    def __init__(
        self,
        poses: Tensor,
        weight: Tensor,
        activations: Tensor | None = None,
        window: Window | None = None,
        leaky: bool = False,
    ):
        device = poses.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            poses, weight = poses.to(dtype), weight.to(dtype)
        self.dense = window is None
        if window is None:
            window = Window(1)
            poses = poses[:, None, None]
            activations = None if activations is None else activations[:, None, None]
        self.window = [window.kernel, window.stride, window.padding]
        self.poses, self.weight, self.activations = poses, weight.to(poses.dtype), activations
        self.leaky = leaky

    def _state(self, tensor: Tensor | None) -> Tensor | None:
        if tensor is None:
            return None
        return tensor[:, None, None] if self.dense else tensor

    def sums(
        self,
        score: str,
        query: Tensor | None = None,
        precision: Tensor | None = None,
        bias: Tensor | None = None,
        route_weight: Tensor | None = None,
        route_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Sums over children of shares [B,J], votes and squares [B,J,E]."""
        if score == "uniform" and not self.dense and not self.leaky:
            if self.weight.shape[0] == self.window[0] ** 2 * self.poses.shape[3]:
                return self._convolve()
        state = (self._state(query), self._state(precision), self._state(bias))
        found = torch.ops.torchcaps.step(
            self.poses, self.weight, self.activations, *state, route_weight, route_bias,
            self.window, score, self.leaky, torch.are_deterministic_algorithms_enabled(),
        )  # fmt: skip
        return tuple(t[:, 0, 0] if self.dense and t.numel() else t for t in found[:3])  # pyright: ignore

    def _convolve(self) -> tuple[Tensor, Tensor, Tensor]:
        """The uniform pass over windows is a convolution of each row of the poses."""
        batch, height, width, types, dim = self.poses.shape
        _, out_caps, in_dim, out_dim = self.weight.shape
        kernel, stride, padding = self.window
        rows = dim // in_dim
        poses, mass = self.poses, self.poses.new_empty(0)
        if self.activations is not None:
            active = self.activations.to(poses.dtype)
            poses = poses * active[..., None]
            pooled = F.avg_pool2d(
                active.float().sum(-1)[:, None], kernel, stride, padding, divisor_override=out_caps
            )
            mass = pooled.permute(0, 2, 3, 1).expand(-1, -1, -1, out_caps)
        table = poses.reshape(batch, height, width, types, rows, in_dim)
        images = table.permute(0, 4, 1, 2, 3, 5).reshape(batch * rows, height, width, -1)
        filters = self.weight.reshape(kernel, kernel, types, out_caps, in_dim, out_dim)
        filters = filters.permute(3, 5, 0, 1, 2, 4).reshape(-1, kernel, kernel, types * in_dim)
        maps = F.conv2d(
            images.permute(0, 3, 1, 2), filters.permute(0, 3, 1, 2), None, stride, padding
        )
        summed = maps.unflatten(1, (out_caps, out_dim)).unflatten(0, (batch, rows))
        summed = summed.permute(0, 4, 5, 2, 1, 3).flatten(-2) / out_caps
        return mass, summed.float(), mass

    def coupling(
        self,
        score: str,
        query: Tensor | None = None,
        precision: Tensor | None = None,
        bias: Tensor | None = None,
        route_weight: Tensor | None = None,
        route_bias: Tensor | None = None,
    ) -> Tensor:
        """Shares of each child, without gradients. -> [B,I,J] or [B,H',W',C,J]"""
        with torch.no_grad():
            state = (self._state(query), self._state(precision), self._state(bias))
            shares = torch.ops.torchcaps.coupling(
                self.poses, self.weight, *state, route_weight, route_bias,
                self.window, score, self.leaky,
            )  # fmt: skip
        return shares[:, 0, 0] if self.dense else shares


def by_rows(
    route: Callable[..., tuple[Tensor, ...]],
    poses: Tensor,
    weight: Tensor,
    window: Window | None = None,
    budget: int = MEMORY_BUDGET,
    *,
    activations: Tensor | None = None,
    per_row: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """A reference on every window, so many rows at a time that their votes fit into the budget.

    `route(poses [B,C,D], weight, activations [B,C] or None, per_row [B,...] or None)` -> tensors
    [B,...]. With several parts each is computed again in the backward pass, so memory stays flat
    there too.
    """
    grid = poses.shape[:1]
    if window is not None:
        poses = unfold(poses, window)
        grid = poses.shape[:3]
        poses = poses.flatten(0, 2)
        if activations is not None:
            activations = unfold(activations[..., None], window).flatten(0, 2)[..., 0]
    pose_bytes = poses.shape[-1] // weight.shape[2] * weight.shape[3] * poses.element_size()
    rows = max(1, budget // max(1, poses.shape[1] * weight.shape[1] * pose_bytes))
    if rows >= poses.shape[0]:
        found = route(poses, weight, activations, per_row)
    else:
        parts = poses.split(rows)
        none = [None] * len(parts)
        actives = none if activations is None else activations.split(rows)
        others = none if per_row is None else per_row.split(rows)
        pieces = [
            checkpoint(route, part, weight, active, other, use_reentrant=False)
            for part, active, other in zip(parts, actives, others, strict=True)
        ]
        found = tuple(torch.cat(t) for t in zip(*pieces, strict=True))
    return tuple(t.unflatten(0, grid) for t in found) if window is not None else found
