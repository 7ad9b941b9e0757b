"""One routing step without votes in memory, and the choice between kernels and references.

Every routing is a loop around one step: score each child's votes, normalize over parents, add up.
`FusedStep` holds the constant inputs (poses, transforms, window) and leaves the small state of the
parents to autograd; `by_rows` runs a reference on windows, a few rows at a time.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torchcaps.errors import TorchcapsError
from torchcaps.functional import bounded_gradient
from torchcaps.kernels import ops as ops  # registers the operators
from torchcaps.kernels import why_no_kernel
from torchcaps.routing.window import Window, check_sizes, unfold

Impl = Literal["auto", "reference", "triton"]

MEMORY_BUDGET = 1 << 30
"""Default limit of the votes that a reference holds at a time, in bytes."""

ROWS_IN_CACHE = 16
"""Images whose votes a reference forms at a time on a CPU: more leave its cache between two passes,
for fewer the transforms are read too often."""

MOST_SQUARED = 8
"""Largest inner size of transforms for which products of a pose's entries replace votes."""

FEWEST_POSITIONS = 64
"""Fewest children that share a transform for the kernels of `positions`, whose tiles they fill;
with 36 they took as long as `attention`."""


def _why_not(poses: Tensor, weight: Tensor, window: Window) -> str:
    """Reason why the kernels do not support these tensors on this GPU; empty if they do."""
    if reason := why_no_kernel(poses.device):
        return reason
    if torch.float64 in (poses.dtype, weight.dtype):
        return "the kernels compute in float32, and these tensors are float64"
    if not poses.shape[0]:
        return "the batch is empty"
    if not poses.numel() or not weight.numel():
        return "there are no capsules"
    _, out_caps, in_dim, out_dim = weight.shape
    rows = poses.shape[-1] // in_dim
    if rows > 8:
        return "a matrix pose has more than 8 rows"
    if rows * out_dim > 128 or in_dim > 128 or in_dim * out_dim > 4096:
        return f"transforms of {in_dim}x{out_dim} do not fit into shared memory"
    positions = poses.shape[0]
    if poses.dim() == 5:
        positions *= window.out(poses.shape[1]) * window.out(poses.shape[2])
    parent_entries = positions * out_caps * rows * out_dim
    if any(n >= 1 << 31 for n in (poses.numel(), weight.numel(), parent_entries)):
        return "poses, transforms or parents have 2^31 entries or more"
    return ops.why_not(rows, in_dim, out_dim)


def check_kinds(poses: Tensor, weight: Tensor, window: Window | None) -> None:
    """Check shapes and types that references and kernels both need."""
    if poses.dim() != (3 if window is None else 5):
        shape = "[B,I,D]" if window is None else "[B,H,W,I,D] with a window"
        raise TorchcapsError(f"poses have shape {list(poses.shape)}; routing needs {shape}.")
    if not poses.is_floating_point() or not weight.is_floating_point():
        raise TorchcapsError(
            f"poses are {poses.dtype}, transforms {weight.dtype}: routing needs floats."
        )
    if poses.dtype != weight.dtype and not torch.is_autocast_enabled(poses.device.type):
        raise TorchcapsError(
            f"poses are {poses.dtype}, transforms {weight.dtype}: give both one type, or use "
            "torch.autocast."
        )


def _fits(activations: Tensor, poses: Tensor) -> bool:
    """True if every image has one activation for each child, or one for all children."""
    shape = poses.shape[:-1]
    return activations.shape in (shape, (*shape[:-1], 1))


def use_kernel(
    impl: Impl,
    poses: Tensor,
    weight: Tensor,
    window: Window | None,
    activations: Tensor | None = None,
) -> bool:
    """True if the fused step runs; `impl="triton"` raises with the reason if it cannot."""
    if impl not in ("auto", "reference", "triton"):
        raise TorchcapsError(f"impl={impl!r} is not one of auto, reference, triton.")
    check_kinds(poses, weight, window)
    children = poses.shape[-2] * (1 if window is None else window.kernel**2)
    check_sizes(children, poses.shape[-1], weight)
    if activations is not None and not _fits(activations, poses):
        raise TorchcapsError(
            f"activations have shape {list(activations.shape)}; poses {list(poses.shape)} need "
            f"{list(poses.shape[:-1])}, or one for all children."
        )
    if impl == "reference" or (impl == "auto" and poses.device.type != "cuda"):
        return False
    reason = _why_not(poses, weight, window or Window(1))
    if reason and impl == "triton":
        raise TorchcapsError(f"impl='triton': {reason}.")
    return not reason


class Sums(NamedTuple):
    """Result of a step: sums over children, and their coupling."""

    shares: Tensor
    """[B,J]; empty without activations"""
    votes: Tensor
    """[B,J,E]"""
    squares: Tensor
    """[B,J,E]; empty unless the score is Gaussian"""
    coupling: Tensor | None
    """[B,I,J] or [B,H',W',C,J] on request, without gradients"""


class FusedStep:
    """The fused step on fixed poses and transforms.

    poses [B,I,D], or [B,H,W,I,D] with a window; weight [N,J,D,E]; activations [B,I] or [B,H,W,I].
    Returns sums over children: votes [B,J,E] (or [B,H',W',J,E]), and shares if there are
    activations.
    """

    def __init__(
        self,
        poses: Tensor,
        weight: Tensor,
        activations: Tensor | None = None,
        window: Window | None = None,
    ):
        device = poses.device.type
        self.dtype = poses.dtype
        """Type of a routing's outputs; sums are float32."""
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
            poses, weight, self.dtype = poses.to(dtype), weight.to(dtype), torch.float32
        self.dense = window is None
        if activations is not None:
            activations = activations.expand(poses.shape[:-1])
        if window is None:
            window = Window(1)
            poses = poses[:, None, None]
            activations = None if activations is None else activations[:, None, None]
        self.window = [window.kernel, window.stride, window.padding]
        self.children = window.kernel**2 * poses.shape[3]
        self.grid = (poses.shape[0], window.out(poses.shape[1]), window.out(poses.shape[2]))
        self.poses, self.weight, self.activations = poses, weight.to(poses.dtype), activations
        self.shared = self.weight
        """Transforms before `deterministic` makes copies of them."""
        self.deterministic = torch.are_deterministic_algorithms_enabled()
        if self.deterministic:  # children that share a transform add gradients in random order
            self.weight = self._unshare(self.weight)

    def _unshare(self, tensor: Tensor) -> Tensor:
        """One copy of shared weights for each child."""
        return tensor.repeat(self.children // tensor.shape[0], *[1] * (tensor.dim() - 1))

    def _state(self, tensor: Tensor | None, *last: int) -> Tensor | None:
        """Expand a parent tensor to the shape that the kernels read."""
        if tensor is None:
            return None
        tensor = tensor[:, None, None] if self.dense else tensor
        return tensor.float().expand(*self.grid, self.weight.shape[1], *last)

    def _arguments(
        self,
        query: Tensor | None,
        precision: Tensor | None,
        bias: Tensor | None,
        route_weight: Tensor | None,
        route_bias: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        _, _, in_dim, out_dim = self.weight.shape
        size = self.poses.shape[-1] // in_dim * out_dim
        if self.deterministic and route_weight is not None and route_bias is not None:
            route_weight, route_bias = self._unshare(route_weight), self._unshare(route_bias)
        state = (self._state(query, size), self._state(precision, size), self._state(bias))
        return *state, route_weight, route_bias

    def sums(
        self,
        score: str,
        query: Tensor | None = None,
        precision: Tensor | None = None,
        bias: Tensor | None = None,
        route_weight: Tensor | None = None,
        route_bias: Tensor | None = None,
        coupling: bool = False,
        across: bool = False,
    ) -> Sums:
        """Sums over children, with the coupling on request.

        across: a child's shares sum to one over the parents of all windows that see it.
        """
        uniform = score == "uniform"
        if uniform and not self.dense and self.weight.shape[0] == self.children:
            empty = self.poses.new_empty(0)
            sums = self._masses(), self._convolve(self._active(self._rows()), self.weight), empty
            return Sums(*sums, self.uniform_coupling() if coupling else None)
        if self._shares_over_positions() and (uniform or (score == "dot" and not coupling)):
            votes, empty = self._over_positions(query), self.poses.new_empty(0)
            return Sums(empty, votes, empty, self.uniform_coupling() if coupling else None)
        arguments = self._arguments(query, precision, bias, route_weight, route_bias)
        *sums, _, shares = torch.ops.torchcaps.step(
            self.poses, self.weight, self.activations, *arguments,
            self.window, score, self.deterministic, coupling and not uniform, across,
        )  # fmt: skip
        mass, votes, squares, shares = (
            t[:, 0, 0] if self.dense and t.numel() else t for t in (*sums, shares)
        )
        if not coupling:
            return Sums(mass, votes, squares, None)
        return Sums(
            mass, votes, squares, self.uniform_coupling() if uniform else shares.mT.detach()
        )

    def _shares_over_positions(self) -> bool:
        """True if each transform has enough children for the kernels of `positions`."""
        types, out_caps, _, _ = self.shared.shape
        many = self.children >= FEWEST_POSITIONS * types
        small = out_caps <= 256 and self.poses.shape[-1] <= 64
        return self.dense and self.activations is None and many and small

    def _over_positions(self, query: Tensor | None) -> Tensor:
        """Sums of votes of children that share transforms over positions. -> [B,J,R*E]

        With G = W q for each type and parent, scores are products of poses with G, and sums of
        votes are products of sums of poses with W.
        """
        types, out_caps, in_dim, out_dim = self.shared.shape
        poses = self.poses[:, 0, 0].unflatten(1, (-1, types))
        with torch.autocast(poses.device.type, enabled=False):
            weight = self.shared.float()
            if query is None:
                summed = poses.sum(1, dtype=torch.float32).unflatten(-1, (-1, in_dim)) / out_caps
                return torch.einsum("bnrd,njde->bjre", summed, weight).flatten(2)
            query = query.float().unflatten(-1, (-1, out_dim))
            scores = torch.einsum("bjre,njde->bnjrd", query, weight).flatten(3)
            summed = torch.ops.torchcaps.attend(poses, scores)[0].unflatten(-1, (-1, in_dim))
            return torch.einsum("bnjrd,njde->bjre", summed, weight).flatten(2)

    def uniform_coupling(self) -> Tensor:
        """Coupling of a uniform pass."""
        parents = self.weight.shape[1]
        grid = self.grid[:1] if self.dense else self.grid
        coupling = self.poses.new_full((1,), 1 / parents, dtype=torch.float32)
        return coupling.expand(*grid, self.children, parents)

    def _masses(self) -> Tensor:
        """Sums of shares of a uniform pass over windows; empty without activations."""
        if self.activations is None:
            return self.poses.new_empty(0)
        kernel, stride, padding = self.window
        out_caps = self.weight.shape[1]
        totals = F.pad(self.activations.float().sum(-1)[:, None], [padding] * 4)
        pooled = F.avg_pool2d(totals, kernel, stride, divisor_override=out_caps)
        return pooled.permute(0, 2, 3, 1).expand(-1, -1, -1, out_caps)

    def _convolve(self, table: Tensor, weight: Tensor) -> Tensor:
        """Sum of votes with equal shares, as a convolution of each row of the poses.

        table [B,R,H,W,I,D], times activations; weight [C,J,D,E] -> [B,H',W',J,R*E]
        """
        _, out_caps, _, out_dim = weight.shape
        kernel, stride, padding = self.window
        filters = weight.unflatten(0, (kernel, kernel, -1)).permute(3, 5, 0, 1, 2, 4)
        maps = F.conv2d(
            table.flatten(0, 1).flatten(-2).permute(0, 3, 1, 2),
            filters.flatten(0, 1).flatten(-2).permute(0, 3, 1, 2),
            None, stride, padding,
        )  # fmt: skip
        summed = maps.unflatten(1, (out_caps, out_dim)).unflatten(0, (table.shape[0], -1))
        return summed.permute(0, 4, 5, 2, 1, 3).flatten(-2).float() / out_caps

    def _rows(self) -> Tensor:
        """Rows of the poses, as images of their own. -> [B,R,H,W,I,D]"""
        return self.poses.unflatten(-1, (-1, self.weight.shape[2])).permute(0, 4, 1, 2, 3, 5)

    def _active(self, table: Tensor) -> Tensor:
        """Rows of the poses times activations, if there are any."""
        if self.activations is None:
            return table
        return table * self.activations[:, None, ..., None].to(table.dtype)

    def uniform_moments(self, eps: float) -> tuple[Tensor, Sums]:
        """Uniform pass with the sums of squared votes, and what it subtracts from votes.

        Over windows zero, so that squares are sums over products of a pose's entries:

            v_e^2 = (sum over d of x_d W_de)^2 = sum over d, k of f_k x_d x_(d+k) W_de W_(d+k)e

        d+k is modulo D, k at most D/2, and f_k the number of times a pair counts. These are
        convolutions, in float32 or tf32 whatever the type of the poses. Else the mean of the votes,
        which is more exact for few children; eps is added to its denominator.
        """
        in_dim = self.weight.shape[2]
        if self.dense or in_dim > MOST_SQUARED:
            mass, summed, *_ = self.sums("uniform")
            mean = summed / (mass[..., None] + eps)
            return mean, self.sums("gauss", mean, torch.zeros_like(mean), torch.zeros_like(mass))
        with torch.autocast(self.poses.device.type, enabled=False):
            table = self._rows().float().contiguous()
            active = self._active(table)
            weight = self._unshare(self.weight).float()
            turns = range(in_dim // 2 + 1)
            pairs = torch.cat([active * (table.roll(-k, -1) if k else table) for k in turns], -1)
            times = [1 if k in (0, in_dim / 2) else 2 for k in turns]
            filters = torch.cat(
                [f * weight * weight.roll(-k, 2) for f, k in zip(times, turns, strict=True)], 2
            )
            summed, squares = self._convolve(active, weight), self._convolve(pairs, filters)
        return torch.zeros_like(summed), Sums(self._masses(), summed, squares, None)


def by_rows(
    route: Callable[..., tuple[Tensor, ...]],
    poses: Tensor,
    weight: Tensor,
    window: Window | None = None,
    budget: int = MEMORY_BUDGET,
    *,
    activations: Tensor | None = None,
    per_row: Tensor | None = None,
    group: int = 1,
    coupling: bool = True,
) -> Any:
    """Run a reference on every window, in chunks of rows whose votes fit into the budget.

    `route(poses [B,C,D], weight, activations [B,C] or None, per_row [B,...] or None)` -> tensors
    [B,...], the last one the coupling; `coupling=False` replaces it by None. With several chunks
    the backward pass recomputes each, to limit memory there too. group: consecutive rows that stay
    in one chunk, whatever the budget. float16 is computed in float32, as the kernels sum.

    >>> from torchcaps.routing import form_votes
    >>> poses, weight = torch.rand(2, 6, 4), torch.rand(6, 3, 4, 5)
    >>> def route(poses, weight, *_):
    ...     votes = form_votes(poses, weight)
    ...     return votes.mean(1), votes.new_full(votes.shape[:3], 1 / 3)
    >>> by_rows(route, poses, weight)[0].shape
    torch.Size([2, 3, 5])
    """
    dtype = poses.dtype
    if dtype == torch.float16 and not torch.is_autocast_enabled(poses.device.type):
        poses, weight = bounded_gradient(poses), bounded_gradient(weight)
        activations = None if activations is None else bounded_gradient(activations)
        per_row = None if per_row is None else bounded_gradient(per_row)

    def once(*inputs: Any) -> tuple[Tensor, ...]:
        outputs = route(*inputs) if coupling else route(*inputs)[:-1]
        return outputs if poses.dtype == dtype else tuple(t.to(dtype) for t in outputs)

    def outputs_of(*inputs: Any) -> tuple[Tensor, ...]:
        if torch.compiler.is_compiling() or cached >= len(inputs[0]):  # a trace fits any batch
            return once(*inputs)
        return _concatenated(once(*chunk) for chunk in _chunks(cached, *inputs))

    grid = poses.shape[:1]
    if window is not None:
        poses = unfold(poses, window)
        grid = poses.shape[:3]
        poses = poses.flatten(0, 2)
        if activations is not None:
            activations = unfold(activations[..., None], window).flatten(0, 2)[..., 0]
    pose_bytes = poses.shape[-1] // weight.shape[2] * weight.shape[3] * max(4, poses.element_size())
    rows = budget // max(1, poses.shape[1] * weight.shape[1] * pose_bytes)
    rows = max(1, rows // group) * group
    cached = ROWS_IN_CACHE if poses.device.type == "cpu" and window is None else rows
    inputs = poses, weight, activations, per_row
    if torch.compiler.is_exporting() or rows >= len(poses):  # exports take any batch at once
        outputs = outputs_of(*inputs)
    else:
        chunks = _chunks(rows, *inputs)
        outputs = _concatenated(checkpoint(outputs_of, *c, use_reentrant=False) for c in chunks)
    if window is not None:
        outputs = tuple(t.unflatten(0, grid) for t in outputs)
    return outputs if coupling else (*outputs, None)


def _chunks(
    rows: int, poses: Tensor, weight: Tensor, *per_row: Tensor | None
) -> Iterator[tuple[Tensor | None, ...]]:
    """The inputs of a route, so many rows at a time."""
    parts = [[None] * len(poses) if t is None else t.split(rows) for t in per_row]
    for chunk, *others in zip(poses.split(rows), *parts, strict=False):
        yield chunk, weight, *others


def _concatenated(chunks: Iterable[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(parts) for parts in zip(*chunks, strict=True))
