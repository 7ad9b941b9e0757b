"""Covers: all assignments of points to objects with a limited number of points each.

Every object has a group of points, possibly empty, and no point is in two groups. Points without an
object are strays; only covers with the minimum number of strays are listed.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, permutations, product
from math import comb
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.errors import TorchcapsError

MAX_COVERS = 200_000
"""Maximum number of covers of a scene; three objects of four points have up to 34,650."""


class Covers(NamedTuple):
    orders: dict[int, Tensor]
    """For each size k above zero, points of every group of that size, in every order [G,k!,k]."""
    groups: Tensor
    """Index of the group of each object in each cover [C,J]; 0: no points."""
    members: Tensor
    """Mask of the points of each group [groups,P], sorted by size of the group."""
    strays: int
    """Number of points without an object."""


@lru_cache(maxsize=32)
def covers(points: int, objects: int, most: int) -> Covers:
    """All covers of `points` points by `objects` objects of at most `most` points each."""
    used = min(points, objects * most)
    sizes = [s for s in product(range(most + 1), repeat=objects) if sum(s) == used]
    count = sum(_count(points, each) for each in sizes)
    if count > MAX_COVERS:
        raise TorchcapsError(
            f"{points} points have {count:,} covers by {objects} objects of {most} points each; "
            f"at most {MAX_COVERS:,} are supported. Use fewer objects or points."
        )
    by_size = [list(combinations(range(points), k)) for k in range(min(most, points) + 1)]
    groups = [group for each in by_size for group in each]
    index = {group: n for n, group in enumerate(groups)}
    rows = [
        [index[group] for group in cover]
        for each in sizes
        for cover in _partitions(tuple(range(points)), each)
    ]
    members = torch.zeros(len(groups), points, dtype=torch.bool)
    for n, group in enumerate(groups):
        members[n, list(group)] = True
    orders = {
        k: torch.tensor([list(permutations(group)) for group in each])
        for k, each in enumerate(by_size)
        if k
    }
    return Covers(orders, torch.tensor(rows), members, points - used)


def _count(points: int, sizes: tuple[int, ...]) -> int:
    count = 1
    for size in sizes:
        count *= comb(points, size)
        points -= size
    return count


def _partitions(
    points: tuple[int, ...], sizes: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All choices of disjoint groups of these sizes."""
    if not sizes:
        yield ()
        return
    for group in combinations(points, sizes[0]):
        rest = tuple(x for x in points if x not in group)
        for others in _partitions(rest, sizes[1:]):
            yield (group, *others)
