"""Which capsules an image calls on: support, ranks, what one of them draws alone.

Support is what the routing of the last layer gives each parent (`layers/sparse.py`), for any model
with a coupling; a sparse model has ranked it itself, with its boosts.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchcaps.analysis.drawings import Grid, Line, Lines, Matrix
from torchcaps.analysis.measures import Measure, register_measure
from torchcaps.analysis.views import Arrays, View, evenly, few, lacks, register_view
from torchcaps.data import Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.layers.sparse import ranks_of, support_of
from torchcaps.models import CapsuleModel, Output

LOOKED_AT = 2000


def support_and_rank(output: Output, layer: int = -1) -> tuple[Tensor, Tensor]:
    """Support and rank of the parents of one ranked layer, each [B,J]."""
    rankings = getattr(output, "rankings", ())
    if rankings:
        return rankings[layer].support, rankings[layer].rank
    if len(output.layers) < 2 or output.coupling is None or output.coupling.dim() != 3:
        raise TorchcapsError("No layer of this model routes all children to all parents.")
    support = support_of(output.coupling, tuple(output.layers[-2].poses.shape[1:-1]))
    return support, ranks_of(support)


@torch.no_grad()
def ranked_layers(model: CapsuleModel, split: Split) -> list[tuple[Tensor, Tensor]]:
    """The same of every image of a split and of each ranked layer, from the lowest: [N,J]"""
    model.eval()
    found = []
    for batch in split.batches(500):
        output = model.encode(batch.images, coupling=True)
        count = len(getattr(output, "rankings", ())) or 1
        found.append([support_and_rank(output, layer) for layer in range(-count, 0)])
    return [
        (torch.cat([s for s, _ in parts]), torch.cat([r for _, r in parts]))
        for parts in zip(*found, strict=True)
    ]


def ranked(model: CapsuleModel, split: Split) -> tuple[Tensor, Tensor]:
    """Support and rank in the last layer of every image of a split, each [N,J]."""
    return ranked_layers(model, split)[-1]


def support_by_rank(support: Tensor) -> Tensor:
    """Support sorted, averaged over images, divided by the first. [N,J] -> [J]"""
    mean = support.sort(1, descending=True).values.mean(0)
    return mean / mean[0]


def rank_frequencies(model: CapsuleModel, split: Split) -> Tensor:
    """How often each capsule of the last layer has each rank. -> [J capsules, J ranks]"""
    _, rank = ranked(model, split)
    return torch.nn.functional.one_hot(rank, rank.shape[1]).float().mean(0)


def rank_numbers(model: CapsuleModel, split: Split) -> dict[str, float]:
    """How ranks are shared out: entropy of who comes first (in nats, log J: evenly), capsules that
    never do, and support of rank 3 over that of rank 0; of a stack's lowest ranked layer too.
    """
    every = ranked_layers(model, split)
    support, rank = every[-1]
    first = (rank == 0).float().mean(0)
    entropy = -(first * first.clamp(min=1e-12).log()).sum()
    numbers = {
        "first_entropy": float(entropy) + 0.0,  # no -0
        "dead": float((first == 0).sum()),
        "support_ratio": _ratio(support),
    }
    return numbers | ({"lower_support_ratio": _ratio(every[0][0])} if len(every) > 1 else {})


def _ratio(support: Tensor) -> float:
    curve = support_by_rank(support)
    return float(curve[min(3, len(curve) - 1)])


def label_entropy(rank: Tensor, labels: Tensor) -> float:
    """Nats of doubt about the label of an image whose first capsule is known. rank [N,J]"""
    first = rank.argmin(1)
    classes = int(labels.max()) + 1
    table = torch.zeros(rank.shape[1], classes, dtype=torch.float64, device=rank.device)
    table.index_put_((first, labels), torch.ones_like(labels, dtype=torch.float64), accumulate=True)
    given = table / table.sum(1, keepdim=True).clamp(min=1)
    doubt = -(given * given.clamp(min=1e-300).log()).sum(1)
    return float((doubt * table.sum(1)).sum() / table.sum())


@register_measure(
    "ranks", ("first_entropy", "dead", "support_ratio", "lower_support_ratio", "label_entropy")
)
@dataclass
class Ranks(Measure):
    """Who comes first and how often: entropy, capsules that never do, steepness, purity."""

    needs = ()

    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        numbers = rank_numbers(model, split)
        _, rank = ranked(model, split)
        known = split.labels >= 0
        return {**numbers, "label_entropy": label_entropy(rank[known], split.labels[known])}


def _no_ranks(model: CapsuleModel, data: Dataset) -> str:
    try:
        with torch.no_grad():
            support_and_rank(model.encode(few(data, 2).images, coupling=True))
    except TorchcapsError as error:
        return str(error)
    return ""


@register_view("support")
class Support(View):
    title = "Support by rank"
    place = 70
    words = (
        "What the routing gives the capsules of a layer, sorted for each image, averaged, as a "
        "share of the first: flat where all are called on alike."
    )
    together = True

    def applies(self, model: CapsuleModel, data: Dataset) -> str:
        return _no_ranks(model, data)

    def compute(self, model: CapsuleModel, data: Dataset) -> Arrays:
        every = ranked_layers(model, _part(data))
        names = [""] if len(every) == 1 else [f", layer {n + 1}" for n in range(len(every))]
        curves = (support_by_rank(support).cpu().numpy() for support, _ in every)
        return dict(zip(names, curves, strict=True))

    def drawing(self, found: dict[str, Arrays]) -> Lines:
        curves = [
            (name + layer, curve)
            for name, arrays in found.items()
            for layer, curve in arrays.items()
        ]
        lines = {
            name: Line(np.arange(len(curve)), curve, colour=n, points=True)
            for n, (name, curve) in enumerate(curves)
        }
        return Lines(lines, "rank", "support, first = 1", 0, 1.05, whole=True)


def _part(data: Dataset) -> Split:
    return data.test[evenly(len(data.test), LOOKED_AT).to(data.test.images.device)]


@register_view("ranks")
class RankFrequencies(View):
    title = "Who comes first"
    place = 71
    words = "How often each capsule of the last layer (a row) has each rank (a column)."

    def applies(self, model: CapsuleModel, data: Dataset) -> str:
        return _no_ranks(model, data)

    def compute(self, model: CapsuleModel, data: Dataset) -> Arrays:
        return {"frequency": rank_frequencies(model, _part(data)).cpu().numpy()}

    def drawing(self, found: dict[str, Arrays]) -> Matrix:
        (arrays,) = found.values()
        names = [str(n) for n in range(len(arrays["frequency"]))]
        return Matrix(arrays["frequency"], names, names, "rank", "capsule", "share of images")


@register_view("alone")
class Alone(View):
    title = "Capsules alone, and left out"
    place = 45
    words = (
        "One test image; below it what each capsule of the last layer draws alone, and what all "
        "the others draw without it."
    )

    def applies(self, model: CapsuleModel, data: Dataset) -> str:
        return lacks(model, data, "decode")

    @torch.no_grad()
    def compute(self, model: CapsuleModel, data: Dataset) -> Arrays:
        batch = few(data, 12)
        image = batch.images[len(batch) // 3][None]
        poses = model.encode(image).drawable
        assert poses is not None
        count = poses.shape[1]
        own = torch.eye(count, device=poses.device)[..., None]
        which = torch.arange(count, device=poses.device)
        return {
            "image": image.cpu().numpy()[0],
            "all": model.decode(poses)[0].cpu().numpy(),
            "alone": model.decode(poses * own, which).cpu().numpy(),
            "without": model.decode(poses * (1 - own)).cpu().numpy(),
        }

    def drawing(self, found: dict[str, Arrays]) -> Grid:
        (arrays,) = found.values()
        first = np.zeros_like(arrays["alone"])
        first[0], first[-1] = arrays["image"], arrays["all"]
        rows = np.stack([first, arrays["alone"], arrays["without"]])
        return Grid(rows, ["input … all", "alone", "without"], inches=0.42)
