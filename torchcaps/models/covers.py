"""Covers: all the ways to share points out among objects that may have so many each.

Every object has a group of points or none, and no point is in two groups. Points that no object has
are strays; only covers with as few of them as there must be are listed.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations, permutations, product
from math import comb
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.errors import TorchcapsError

MOST = 200_000
"""Covers of one scene that are summed; three objects of four points have 34,650 at most."""


class Covers(NamedTuple):
    orders: dict[int, Tensor]
    """For each size k above zero, points of every group of that size, in every order [G,k!,k]."""
    groups: Tensor
    """The group of each object in each cover, by its number [C,J]; 0: no points."""
    members: Tensor
    """Which points each group has [groups,P]; those of one size lie together, small ones first."""
    strays: int
    """Points that no object has."""


@lru_cache(maxsize=32)
def covers(points: int, objects: int, most: int) -> Covers:
    """Covers of so many points by so many objects, each of which has `most` points or fewer."""
    used = min(points, objects * most)
    sizes = [s for s in product(range(most + 1), repeat=objects) if sum(s) == used]
    count = sum(_count(points, each) for each in sizes)
    if count > MOST:
        raise TorchcapsError(
            f"{points} points have {count:,} covers by {objects} objects of {most} points each: "
            f"{MOST:,} can be summed."
        )
    by_size = [list(combinations(range(points), k)) for k in range(min(most, points) + 1)]
    groups = [group for each in by_size for group in each]
    number = {group: n for n, group in enumerate(groups)}
    rows = [
        [number[group] for group in cover]
        for each in sizes
        for cover in _shared(tuple(range(points)), each)
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


def _shared(left: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Groups of these sizes, in every way that no two share a point."""
    if not sizes:
        yield ()
        return
    for group in combinations(left, sizes[0]):
        rest = tuple(x for x in left if x not in group)
        for others in _shared(rest, sizes[1:]):
            yield (group, *others)
