"""Assignments of children that several windows see, for EM and variational Bayes.

A child has one unit of assignment. If n windows see it, the parents of all of them, J types at n
positions, share that unit:

    r_wij = exp(logit_wij) / (sum over windows v that see child i, and types k, of exp(logit_vik))
    first:  r_wij = 1 / (J n_i),  n_i the number of windows that see child i

With `compete="window"` each window normalizes over its own types, so a child's assignments sum to
n_i. With "places" types do not compete: a child has a unit for each type, shared by the windows
that see it, and the first r is 1/J:

    r_wij = exp(logit_wij) / (sum over windows v that see child i of exp(logit_vij) + 1e-7 M_j)

M_j is the largest exponential of the children of one type for parents of type j in the image, as
in the authors' code of EM. "released" is that code itself: it takes places of a window w and w+1
for the same child if their offsets differ by 1, which is true for stride 1 alone.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from torchcaps.errors import TorchcapsError
from torchcaps.routing.window import Window, unfold

Compete = Literal["all", "window", "places", "released"]
PLACES = ("places", "released")
EPS = 1e-8
PLACES_EPS = 1e-7


class Competition:
    """Normalizes assignments over all windows of a grid that see a child.

    Rows are windows: all windows of an image in the order of `unfold`, then those of the next.
    """

    def __init__(self, window: Window, height: int, width: int, types: int, device: torch.device):
        self.window, self.grid = window, (height, width, types)
        self.windows = window.out(height) * window.out(width)
        self.seen = seen_by(window, height, width, device)
        """Number of windows that see each position. [H,W]"""

    def first(self, votes: Tensor) -> Tensor:
        """Assignments before the first pass. votes [B*H'*W',C,J,E] -> [B*H'*W',C,J]"""
        parents = votes.shape[2]
        shares = self.initial(votes.dtype)[..., None].expand(-1, -1, parents) / parents
        return shares.repeat(votes.shape[0] // self.windows, 1, 1)

    def initial(self, dtype: torch.dtype) -> Tensor:
        """Share of each child that a window starts with, the same for every image. -> [H'*W',C]"""
        count = self.seen[None, :, :, None, None].expand(1, *self.grid, 1)
        count = unfold(count, self.window).flatten(0, 2)[..., 0]  # 0 outside the grid
        return (count > 0) / count.clamp_min(1).to(dtype)

    def assign(self, logits: Tensor) -> Tensor:
        """Assignments of each child, which sum to one over its windows; 0 outside the grid.

        logits [B*H'*W',C,J] -> [B*H'*W',C,J]
        """
        height, width, types = self.grid
        slots = height * width * types + 1  # slot 0: outside the grid, then one slot per child
        numbers = torch.arange(1, slots, device=logits.device).view(1, *self.grid, 1)
        lse = logits.logsumexp(-1).unflatten(0, (-1, self.windows)).flatten(1)
        slot = unfold(numbers, self.window).flatten().expand(lse.shape[0], -1)
        low = lse.new_full((1, 1), torch.finfo(lse.dtype).min).expand(lse.shape[0], slots)
        top = low.scatter_reduce(1, slot, lse.detach(), "amax").gather(1, slot)
        sums = torch.zeros_like(low).scatter_add(1, slot, (lse - top).exp()).gather(1, slot)
        total = (top + sums.log()).masked_fill(slot == 0, torch.inf)
        total = total.unflatten(1, (self.windows, -1)).flatten(0, 1)
        return (logits - total[..., None]).exp()


def seen_by(window: Window, height: int, width: int, device: torch.device) -> Tensor:
    """Number of windows that see each position of a grid. -> [H,W]"""

    def along(side: int) -> Tensor:
        position = torch.arange(side, device=device) + window.padding
        corner = torch.arange(window.out(side), device=device) * window.stride
        offset = position[:, None] - corner
        return ((offset >= 0) & (offset < window.kernel)).sum(1)

    return along(height)[:, None] * along(width)


class PlaceCompetition:
    """Normalizes assignments for each pair of types over the windows that see a child."""

    def __init__(self, window: Window, height: int, width: int, types: int, *, released: bool):
        self.windows = window.out(height) * window.out(width)
        self.types = types
        self.window, self.grid = window, (height, width)
        if released:  # the grid that the same windows see with stride 1
            self.window = Window(window.kernel)
            self.grid = (
                window.out(height) + window.kernel - 1,
                window.out(width) + window.kernel - 1,
            )

    def first(self, votes: Tensor) -> Tensor:
        return uniform_assignments(votes)

    def assign(self, logits: Tensor) -> Tensor:
        """logits [B*H'*W',C,J] -> [B*H'*W',C,J]"""
        height, width = self.grid
        numbers = torch.arange(1, height * width + 1, device=logits.device)
        slot = unfold(numbers.view(1, height, width, 1, 1), self.window).flatten()  # 0: outside
        tables = logits.unflatten(0, (-1, self.windows)).unflatten(2, (-1, self.types))
        tables = tables.flatten(1, 2)  # [B,W*K*K,I,J]
        tables = tables - tables.amax(1, keepdim=True)
        sums = tables.new_zeros(tables.shape[0], height * width + 1, *tables.shape[2:])
        sums = sums.index_add(1, slot, tables.exp()) + PLACES_EPS
        shares = tables.exp() / sums[:, slot]
        return shares.reshape(logits.shape)


def find_competition(
    compete: Compete, poses: Tensor, window: Window | None
) -> Competition | PlaceCompetition | None:
    """Competition between windows that share children; None if each window normalizes by itself."""
    if compete not in ("all", "window", *PLACES):
        raise TorchcapsError(f"compete={compete!r} is not one of all, window, places, released.")
    if window is not None and compete in PLACES:
        return PlaceCompetition(window, *poses.shape[1:4], released=compete == "released")
    if compete == "window" or window is None or window.kernel <= window.stride:
        return None
    _, height, width, types, _ = poses.shape
    if window.out(height) == window.out(width) == 1:
        return None
    return Competition(window, height, width, types, poses.device)


def impl_for(competition: Competition | PlaceCompetition | None, impl: str) -> Any:
    """Implementation that supports a competition: the kernels normalize over types."""
    if isinstance(competition, PlaceCompetition):
        if impl == "triton":
            raise TorchcapsError(
                "impl='triton': the kernels normalize over types; compete='places' and 'released' "
                "do not."
            )
        return "reference" if impl == "auto" else impl
    return impl


def uniform_assignments(votes: Tensor) -> Tensor:
    """Equal assignments to every parent. votes [B,I,J,E] -> [B,I,J]"""
    return votes.new_full((1, 1, 1), 1 / votes.shape[2]).expand(votes.shape[:3])


def first_assignments(votes: Tensor, competition: Competition | PlaceCompetition | None) -> Tensor:
    """Assignments before the first pass. votes [B,I,J,E] -> [B,I,J]"""
    return uniform_assignments(votes) if competition is None else competition.first(votes)


def assign(logits: Tensor, competition: Competition | PlaceCompetition | None) -> Tensor:
    """E-step: assignments of children to parents. logits [B,I,J] -> [B,I,J]"""
    return logits.softmax(-1) if competition is None else competition.assign(logits)


def moments(
    votes: Tensor,
    r: Tensor,
    activations: Tensor,
    *,
    eps: float = EPS,
    damping: float = 0.0,
    previous: Tensor | float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Mass [B,J], mean [B,J,E] and scatter [B,J,E] (weighted squares) of each parent's votes.

    votes [B,I,J,E], assignments r [B,I,J], activations [B,I]. damping: share of the previous mean
    in the mean, about which the scatter is then taken
    """
    assigned = r * activations[..., None]
    mass = assigned.sum(1)
    mean = torch.einsum("bij,bije->bje", assigned, votes) / (mass[..., None] + eps)
    if damping:
        mean = (1 - damping) * mean + damping * previous
    square = (votes - mean[:, None]).square()
    return mass, mean, torch.einsum("bij,bije->bje", assigned, square)
