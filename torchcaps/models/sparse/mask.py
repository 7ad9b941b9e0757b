"""Masks of sparse capsules (Rawlinson, Ahmed, Kowadlo: Sparse Unsupervised Capsules, 2018).

    support_j = sum over positions of the largest coupling of any type there with parent j
    rank      = rank of support_j boost_j, 0 the largest
    mask      = exp(-gamma rank / (J-1)), zero if small
    frequency_j: moving average of how often j has rank 0; the boost of a rare parent rises, that
    of a common one falls back to 1

Support, rank and mask are constants of a step: no gradient, float32. The boost affects the ranking
only, not poses or routing. `support="authors"` reproduces a bug of the authors' code, which reads a
coupling stored as (type, row, column) in the order (row, column, type).
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from torchcaps.errors import TorchcapsError
from torchcaps.metrics.ranks import ranks_of, support_of

Kind = Literal["rank", "one-hot", "top-k", "none"]
MIN_MASK = 0.01
"""Masks below this are set to zero."""


class Ranking(NamedTuple):
    """Support, rank and mask of the parents of a batch, each [B,J]."""

    support: Tensor
    rank: Tensor
    mask: Tensor


_pytree._register_namedtuple(Ranking, serialized_type_name="torchcaps.Ranking")


class SparseMask(nn.Module):
    """Mask of a layer of `num_caps` parents, with running frequencies and boosts.

    gamma: decay of the mask with rank. k: number of capsules that `top-k` keeps. low, high:
    frequencies below and above which a boost rises and falls, as multiples of 1/J.
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
        """Mask of each rank. [B,J] -> [B,J]"""
        if self.kind == "one-hot":
            return (rank == 0).float()
        if self.kind == "top-k":
            return (rank < self.k).float()
        if self.kind == "none":
            return torch.ones_like(rank, dtype=torch.float32)
        mask = torch.exp(-self.gamma * rank.float() / max(1, self.num_caps - 1))
        return torch.where(mask < MIN_MASK, 0.0, mask)

    @torch.no_grad()
    def count(self, first: Tensor, decay: float = 0.99) -> None:
        """Update the frequencies with the share of images in which each parent had rank 0 [J]."""
        empty = self.frequency.sum() == 0
        average = decay * self.frequency + (1 - decay) * first
        self.frequency.copy_(torch.where(empty, first, average))

    @torch.no_grad()
    def adapt(self, step: float = 0.1, online: bool = False, relative: bool = False) -> None:
        """Raise the boost of rare parents and lower that of common ones, never below 1.

        online: rare and common mean one standard deviation from the mean, not fixed multiples.
        relative: multiply boosts and keep the smallest at 1, so that steps keep their effect
        instead of vanishing next to large boosts
        """
        low, high = self.low / self.num_caps, self.high / self.num_caps
        if online:
            mean, std = self.frequency.mean(), self.frequency.std()
            low, high = mean - std, mean + std
        rare, common = self.frequency < low, self.frequency > high
        if relative:
            power = rare.float() - common.float()
            boost = self.boost * (1 + step) ** power
            self.boost.copy_(boost / boost.min())
            return
        raised = self.boost + step * rare
        self.boost.copy_(torch.where(common, (raised - step).clamp(min=1), raised))
