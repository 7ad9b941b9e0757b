"""Support and ranks of the capsules of a layer, and how they are distributed over images.

Support is the coupling that a parent receives (`support_of`), for any model with coupling
coefficients. A sparse model provides its own ranks, which include its boosts.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchcaps.data import Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.metrics.base import Metric, register_metric

if TYPE_CHECKING:
    from torchcaps.models import Model, Output


def support_of(coupling: Tensor, grid: tuple[int, ...], authors: bool = False) -> Tensor:
    """Coupling that each parent receives, summed over positions. coupling [B,I,J] -> [B,J], float32

    At each position the largest coupling of any type counts. grid: (H,W,types) of the children, in
    their order; (I,) or (I,1): no types, a plain sum. authors: reshape as the authors' code does
    """
    coupling = coupling.detach().float()
    types = grid[-1] if len(grid) > 2 else 1
    if authors and types > 1:
        by_type = coupling.unflatten(1, grid).permute(0, 3, 1, 2, 4)
        coupling = by_type.flatten(1, 3)
    return coupling.unflatten(1, (-1, types)).amax(2).sum(1)


def ranks_of(support: Tensor) -> Tensor:
    """Rank of each value, 0 for the largest; ties go to the first. [B,J] -> [B,J] int64"""
    column, row = support[:, None], support[:, :, None]
    index = torch.arange(support.shape[1], device=support.device)
    earlier = index < index[:, None]
    return ((column > row) | ((column == row) & earlier)).sum(2)


def support_and_rank(output: "Output", layer: int = -1) -> tuple[Tensor, Tensor]:
    """Support and rank of the parents of one ranked layer, each [B,J]."""
    rankings = getattr(output, "rankings", ())
    if rankings:
        return rankings[layer].support, rankings[layer].rank
    if len(output.layers) < 2 or output.coupling is None or output.coupling.dim() != 3:
        raise TorchcapsError("No layer of this model routes all children to all parents.")
    support = support_of(output.coupling, tuple(output.layers[-2].poses.shape[1:-1]))
    return support, ranks_of(support)


@torch.no_grad()
def ranked_layers(model: "Model", split: Split) -> list[tuple[Tensor, Tensor]]:
    """Support and rank, each [N,J], of all images of a split; one pair for each ranked layer.

    The lowest layer comes first.
    """
    model.eval()
    batches = []
    for batch in split.batches(500):
        output = model.encode(batch.images, coupling=True)
        count = len(getattr(output, "rankings", ())) or 1
        batches.append([support_and_rank(output, layer) for layer in range(-count, 0)])
    return [
        (torch.cat([s for s, _ in layer]), torch.cat([r for _, r in layer]))
        for layer in zip(*batches, strict=True)
    ]


def ranked(model: "Model", split: Split) -> tuple[Tensor, Tensor]:
    """Support and rank in the last layer, each [N,J], of all images of a split."""
    return ranked_layers(model, split)[-1]


def support_by_rank(support: Tensor) -> Tensor:
    """Mean support by rank, divided by that of rank 0. [N,J] -> [J]"""
    mean = support.sort(1, descending=True).values.mean(0)
    return mean / mean[0]


def rank_frequencies(model: "Model", split: Split) -> Tensor:
    """Frequency of each rank for each capsule of the last layer. -> [J capsules, J ranks]"""
    _, rank = ranked(model, split)
    return torch.nn.functional.one_hot(rank, rank.shape[1]).float().mean(0)


def rank_numbers(model: "Model", split: Split) -> dict[str, float]:
    """Statistics of ranks in the last layer.

    first_entropy: entropy of the first-ranked capsule in nats (log J: all capsules equally often).
    dead: number of capsules that never rank first. support_ratio: support of rank 3 over that of
    rank 0. lower_support_ratio: the same in the lowest ranked layer, for models with several.
    """
    layers = ranked_layers(model, split)
    support, rank = layers[-1]
    first = (rank == 0).float().mean(0)
    entropy = -(first * first.clamp(min=1e-12).log()).sum()
    numbers = {
        "first_entropy": float(entropy) + 0.0,  # no -0
        "dead": float((first == 0).sum()),
        "support_ratio": _ratio(support),
    }
    return numbers | ({"lower_support_ratio": _ratio(layers[0][0])} if len(layers) > 1 else {})


def _ratio(support: Tensor) -> float:
    curve = support_by_rank(support)
    return float(curve[min(3, len(curve) - 1)])


def label_entropy(rank: Tensor, labels: Tensor) -> float:
    """Entropy of the label given the first-ranked capsule, in nats. rank [N,J], labels [N]"""
    first = rank.argmin(1)
    classes = int(labels.max()) + 1
    table = torch.zeros(rank.shape[1], classes, dtype=torch.float64, device=rank.device)
    table.index_put_((first, labels), torch.ones_like(labels, dtype=torch.float64), accumulate=True)
    share = table / table.sum(1, keepdim=True).clamp(min=1)
    entropy = -(share * share.clamp(min=1e-300).log()).sum(1)
    return float((entropy * table.sum(1)).sum() / table.sum())


@register_metric(
    "ranks", ("first_entropy", "dead", "support_ratio", "lower_support_ratio", "label_entropy")
)
@dataclass
class Ranks(Metric):
    """Capsule ranks: entropy of the first rank, dead capsules, support ratio, label entropy."""

    needs = ()

    def score(self, model: "Model", data: Dataset, split: Split) -> dict[str, float]:
        numbers = rank_numbers(model, split)
        _, rank = ranked(model, split)
        has_label = split.labels >= 0
        entropy = label_entropy(rank[has_label], split.labels[has_label])
        return {**numbers, "label_entropy": entropy}
