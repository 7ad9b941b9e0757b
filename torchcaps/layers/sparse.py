"""Sparse parents without labels (Rawlinson, Ahmed, Kowadlo: Sparse Unsupervised Capsules, 2018).

    support_j = sum over positions of the largest coupling that any type there has with parent j
    rank      = place of support_j boost_j, 0 the largest
    mask      = exp(-gamma rank / (J-1)), zero where that is small
    frequency_j: how often j has rank 0, over its life; the boost of a rare one rises, of a common
    one falls back to 1

Support, rank and mask are constants of a step: no gradient, float32. The boost counts in the
ranking alone, never in poses or routing. `support="authors"` repeats a slip of the authors' code,
which reads a coupling that lies (type, row, column) as if it lay (row, column, type).
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from torchcaps.errors import TorchcapsError

Kind = Literal["rank", "one-hot", "top-k", "none"]
SMALL = 0.01
"""Masks below this are zero."""


class Ranking(NamedTuple):
    """What a mask did to the parents of a batch: support, rank and mask, each [B,J]."""

    support: Tensor
    rank: Tensor
    mask: Tensor


_pytree._register_namedtuple(Ranking, serialized_type_name="torchcaps.Ranking")


def support_of(coupling: Tensor, grid: tuple[int, ...], authors: bool = False) -> Tensor:
    """How much of the positions goes to each parent. coupling [B,I,J] -> [B,J], float32

    grid: (H,W,types) of the children, in whose order they lie; (I,) or (I,1): no types, a sum
    """
    coupling = coupling.detach().float()
    types = grid[-1] if len(grid) > 2 else 1
    if authors and types > 1:
        by_type = coupling.unflatten(1, grid).permute(0, 3, 1, 2, 4)
        coupling = by_type.flatten(1, 3)
    return coupling.unflatten(1, (-1, types)).amax(2).sum(1)


def ranks_of(support: Tensor) -> Tensor:
    """0 for the largest; of equals the first is ahead. [B,J] -> [B,J] int64"""
    column, row = support[:, None], support[:, :, None]
    place = torch.arange(support.shape[1], device=support.device)
    earlier = place < place[:, None]
    return ((column > row) | ((column == row) & earlier)).sum(2)


class SparseMask(nn.Module):
    """The mask of a layer of `num_caps` parents, and what is counted over its life.

    gamma: how steeply the mask falls with rank. k: how many `top-k` keeps. low, high: frequencies
    below and above which a boost rises and falls, as multiples of an even share 1/J.
    """

    boost: Tensor
    frequency: Tensor

    def __init__(
        self,
        num_caps: int,
        kind: Kind = "rank",
        *,
        gamma: float = 12.0,
        k: int = 3,
        low: float = 0.64,
        high: float = 1.6,
        support: Literal["positions", "authors"] = "positions",
    ):
        super().__init__()
        if not 0 <= low < high:
            raise TorchcapsError(f"low={low}, high={high}: give 0 <= low < high.")
        self.num_caps, self.kind, self.gamma, self.k = num_caps, kind, gamma, k
        self.low, self.high, self.authors = low, high, support == "authors"
        self.register_buffer("boost", torch.ones(num_caps))
        self.register_buffer("frequency", torch.zeros(num_caps))

    def extra_repr(self) -> str:
        return f"{self.num_caps}, {self.kind}"

    @torch.no_grad()
    def forward(self, coupling: Tensor, grid: tuple[int, ...]) -> Ranking:
        support = support_of(coupling, grid, self.authors)
        rank = ranks_of(support * self.boost)
        return Ranking(support, rank, self.mask_of(rank))

    def mask_of(self, rank: Tensor) -> Tensor:
        """rank [B,J] -> mask [B,J]"""
        if self.kind == "one-hot":
            return (rank == 0).float()
        if self.kind == "top-k":
            return (rank < self.k).float()
        if self.kind == "none":
            return torch.ones_like(rank, dtype=torch.float32)
        mask = torch.exp(-self.gamma * rank.float() / max(1, self.num_caps - 1))
        return torch.where(mask < SMALL, 0.0, mask)

    @torch.no_grad()
    def count(self, first: Tensor, decay: float = 0.99) -> None:
        """Take note of one update: the share of images in which each parent had rank 0. [J]"""
        fresh = self.frequency.sum() == 0
        mixed = decay * self.frequency + (1 - decay) * first
        self.frequency.copy_(torch.where(fresh, first, mixed))

    @torch.no_grad()
    def adapt(self, step: float = 0.1, online: bool = False, relative: bool = False) -> None:
        """Raise the boost of rare parents, lower that of common ones, never below 1.

        online: rare and common are a deviation away from the mean, in place of fixed multiples.
        relative: a step multiplies, and the smallest boost is 1, so that boosts cannot wind up
        until a step changes no rank any more
        """
        low, high = self.low / self.num_caps, self.high / self.num_caps
        if online:
            mean, deviation = self.frequency.mean(), self.frequency.std()
            low, high = mean - deviation, mean + deviation
        rare, common = self.frequency < low, self.frequency > high
        if relative:
            power = rare.float() - common.float()
            boost = self.boost * (1 + step) ** power
            self.boost.copy_(boost / boost.min())
            return
        raised = self.boost + step * rare
        self.boost.copy_(torch.where(common, (raised - step).clamp(min=1), raised))
