"""Constellations by covers: each vote generates at most one point, and poses are integrated out.

    p(points) = sum over covers of the product over objects j of p_j(its points)
    p_j(y_1..y_k) = on_j sum over votes v_1..v_k in every order of
                    shown_j(v) Norm(y; D_v still, pose_std^2 D_v D_v' + diag std_v^2)

D_v maps a pose's four numbers to the positions of its votes, so a pose with a Normal prior is
integrated in closed form. The assignment of points to objects and votes is summed out: nothing is
estimated or encoded, and all assignments compete. Covers with more strays than necessary are left
out, which leaves a lower bound.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.models.base import Bound
from torchcaps.models.generative.concrete import log_off, log_on
from torchcaps.models.registry import register
from torchcaps.papers.generative.constellations.covers import covers
from torchcaps.papers.generative.constellations.model import (
    NOWHERE,
    PointModel,
    PriorConfig,
    design_of,
    pose_of,
)


@dataclass(frozen=True, kw_only=True)
class PointCoversConfig(PriorConfig):
    family: ClassVar[str] = "constellation-covers"


class Law(NamedTuple):
    """Density of the points that votes S of object j generate, in the votes' order."""

    design: Tensor
    """Matrix from a pose's four numbers to the votes [J,S,2k,4]."""
    white: Tensor
    """Whitening matrix of deviations from the mean [J,S,2k,2k]."""
    height: Tensor
    """Log density at the mean plus the log probability of these votes [J,S]."""

    def at(self, points: Tensor) -> Tensor:
        """Log density of ordered points. [...,2k] -> [...,J,S]"""
        mean = torch.einsum("jsxy,jsy->jsx", self.white, self.design[..., 0])
        deviation = points @ self.white.flatten(0, 2).mT - mean.flatten()
        return self.height - deviation.unflatten(-1, mean.shape).square().sum(-1) / 2


class PointCovers(PointModel):
    def __init__(self, config: PointCoversConfig):
        super().__init__(config)
        self.options = c = config
        self.prior = nn.Parameter(torch.tensor(c.presence).logit())

    def law(self, size: int) -> Law:
        """Densities of all subsets of `size` votes, computed in float64."""
        c = self.options
        subsets = torch.tensor(list(combinations(range(c.votes), size)), device=self.places.device)
        design = design_of(self.places[:, subsets].double()).flatten(2, 3)
        std = (c.min_std + F.softplus(self.spread[:, subsets].double())).repeat_interleave(2, -1)
        root = torch.linalg.cholesky(
            c.pose_std**2 * design @ design.mT + torch.diag_embed(std.square())
        )
        white = torch.linalg.inv(root)
        mask = F.one_hot(subsets, c.votes).sum(1).to(self.shares)
        log_prob = log_on(self.shares) @ mask.mT + log_off(self.shares) @ (1 - mask).mT
        height = log_prob - root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        height = height - size * math.log(2 * math.pi)
        return Law(*(t.to(self.places) for t in (design, white, height)))

    def joint(self, points: Tensor) -> Tensor:
        """Log-joint of points and each cover. [B,P,2] -> [B,C]"""
        c = self.options
        all_covers = covers(points.shape[1], c.num_caps, c.votes)
        empty = torch.logaddexp(
            log_off(self.prior), log_on(self.prior) + log_off(self.shares).sum(1)
        )
        by_size = [empty.expand(len(points), 1, -1)]
        for size, orders in all_covers.orders.items():
            ordered = points[:, orders.to(points.device)].flatten(3)
            by_size.append(log_on(self.prior) + self.law(size).at(ordered).logsumexp((2, 4)))
        by_object = torch.cat(by_size, 1).unbind(2)
        groups = all_covers.groups.to(points.device).unbind(1)
        terms = [e.index_select(1, g) for e, g in zip(by_object, groups, strict=True)]
        return torch.stack(terms).sum(0) + NOWHERE * all_covers.strays

    def by_count(self, images: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Groups of scenes with equally many points: scenes [B], their points' columns [B,P],
        positions [B,P,2].
        """
        points, mask = self.points(images)
        counts = mask.sum(1).long()
        for count in counts.unique().tolist():
            scenes = (counts == count).nonzero()[:, 0]
            columns = mask[scenes].nonzero()[:, 1].view(len(scenes), count)
            yield scenes, columns, points[scenes[:, None], columns]

    def bound(self, images: Tensor, noise: bool = True) -> Bound:
        """The log-likelihood, if a cover without strays exists and rates are below one."""
        with torch.autocast(images.device.type, enabled=False):
            order, values = [], []
            for scenes, _, points in self.by_count(images):
                order.append(scenes)
                values.append(self.joint(points).logsumexp(1))
        return Bound({"points": torch.cat(values)[torch.cat(order).argsort()]}, images)

    @torch.no_grad()
    def owners(self, images: Tensor, solved: int = 0, starts: int = 0) -> Tensor:
        c = self.options
        owners = torch.full((len(images), images[0, 0].numel()), -1, device=images.device)
        for scenes, columns, points in self.by_count(images):
            all_covers = covers(points.shape[1], c.num_caps, c.votes)
            best = all_covers.groups.to(points.device)[self.joint(points).argmax(1)]
            members = all_covers.members.to(points.device)[best].long()
            owners[scenes[:, None], columns] = torch.where(members.any(1), members.argmax(1), -1)
        return owners

    @torch.no_grad()
    def objects(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Poses by the likeliest votes of the likeliest cover [B,J,2,3], and a mask of the objects
        with points [B,J]. The pose of an object without points is the identity.
        """
        c, owners = self.options, self.owners(images)
        points, _ = self.points(images)
        numbers = points.new_tensor([1.0, 0, 0, 0]).repeat(len(images), c.num_caps, 1)
        for size in range(1, c.votes + 1):
            law, orders = self.law(size), covers(size, 1, size).orders[size][0].to(points.device)
            for j in range(c.num_caps):
                scenes = ((owners == j).sum(1) == size).nonzero()[:, 0]
                columns = (owners[scenes] == j).nonzero()[:, 1].view(len(scenes), size)
                ordered = points[scenes[:, None], columns][:, orders].flatten(2)
                score = law.at(ordered)[:, :, j]
                best, votes = score.flatten(1).argmax(1), score.shape[2]
                members = ordered[torch.arange(len(scenes)), best // votes]
                design, white = law.design[j, best % votes], law.white[j, best % votes]
                change = (white @ (members - design[..., 0])[..., None]).mT @ white @ design
                numbers[scenes, j] += c.pose_std**2 * change[:, 0]
        present = torch.stack([(owners == j).any(1) for j in range(c.num_caps)], 1)
        return pose_of(numbers), present.to(numbers)


register(
    "constellation-covers",
    PointCovers,
    PointCoversConfig(),
    "objects for points, summed over all assignments",
    listed=False,
)
