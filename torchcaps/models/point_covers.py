"""Constellations by covers: a vote makes one point or none, and poses are integrated out.

    p(points) = sum over covers of the product over objects j of p_j(its points)
    p_j(y_1..y_k) = on_j sum over votes v_1..v_k in every order of
                    shown_j(v) Norm(y; D_v still, pose_std^2 D_v D_v' + diag std_v^2)

D_v takes a pose's four numbers to the places of its votes, so that a pose with a Normal prior is
integrated in closed form. Which points are whose, and which vote made each, is summed: nothing is
estimated or encoded, and an object that fits two points of one pattern and two of another is
weighed against all others. Covers with more strays than needed are left out, which leaves a bound.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.layers import Capsules
from torchcaps.losses.concrete import log_off, log_on
from torchcaps.models.base import Bound, Output
from torchcaps.models.constellation import NOWHERE, PointModel, PointsConfig, design_of, pose_of
from torchcaps.models.covers import covers
from torchcaps.models.registry import register


@dataclass(frozen=True)
class PointCoversConfig(PointsConfig):
    family: ClassVar[str] = "constellation-covers"
    presence: float = 0.5
    """How often an object is on before anything is learned."""
    pose_std: float = 1.0
    """The deviation of an object's pose from the identity."""
    min_std: float = 0.01
    """The least deviation of a point from its vote; an image is 2 wide."""


class Law(NamedTuple):
    """The density of points that votes S of object j make, in the votes' order."""

    design: Tensor
    """What a pose's four numbers make of the votes [J,S,2k,4]."""
    white: Tensor
    """Takes deviations from the mean to independent Normals of deviation 1 [J,S,2k,2k]."""
    height: Tensor
    """The log density at the mean, and that these votes are shown [J,S]."""

    def at(self, points: Tensor) -> Tensor:
        """[...,2k] -> [...,J,S]"""
        mean = torch.einsum("jsxy,jsy->jsx", self.white, self.design[..., 0])
        apart = points @ self.white.flatten(0, 2).mT - mean.flatten()
        return self.height - apart.unflatten(-1, mean.shape).square().sum(-1) / 2


class PointCovers(PointModel):
    def __init__(self, config: PointCoversConfig):
        super().__init__(config)
        self.options = c = config
        self.prior = nn.Parameter(torch.tensor(c.presence).logit())

    def law(self, size: int) -> Law:
        """The densities of all subsets of so many votes, in float64 while matrices are small."""
        c = self.options
        chosen = torch.tensor(list(combinations(range(c.votes), size)), device=self.places.device)
        design = design_of(self.places[:, chosen].double()).flatten(2, 3)
        std = (c.min_std + F.softplus(self.spread[:, chosen].double())).repeat_interleave(2, -1)
        root = torch.linalg.cholesky(
            c.pose_std**2 * design @ design.mT + torch.diag_embed(std.square())
        )
        white = torch.linalg.inv(root)
        shown = F.one_hot(chosen, c.votes).sum(1).to(self.shares)
        chance = log_on(self.shares) @ shown.mT + log_off(self.shares) @ (1 - shown).mT
        height = chance - root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        height = height - size * math.log(2 * math.pi)
        return Law(*(t.to(self.places) for t in (design, white, height)))

    def joint(self, places: Tensor) -> Tensor:
        """The log-joint of points and each cover. [B,P,2] -> [B,C]"""
        c = self.options
        ways = covers(places.shape[1], c.num_caps, c.votes)
        none = torch.logaddexp(
            log_off(self.prior), log_on(self.prior) + log_off(self.shares).sum(1)
        )
        each = [none.expand(len(places), 1, -1)]
        for size, orders in ways.orders.items():
            ordered = places[:, orders.to(places.device)].flatten(3)
            each.append(log_on(self.prior) + self.law(size).at(ordered).logsumexp((2, 4)))
        explained = torch.cat(each, 1).unbind(2)
        picked = ways.groups.to(places.device).unbind(1)
        parts = [e.index_select(1, p) for e, p in zip(explained, picked, strict=True)]
        return torch.stack(parts).sum(0) + NOWHERE * ways.strays

    def alike(self, images: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Scenes with the same number of points: which, where these are kept, places [B,P,2]."""
        places, there = self.points(images)
        count = there.sum(1).long()
        for points in count.unique().tolist():
            scenes = (count == points).nonzero()[:, 0]
            kept = there[scenes].nonzero()[:, 1].view(len(scenes), points)
            yield scenes, kept, places[scenes[:, None], kept]

    def bound(self, images: Tensor, noise: bool = True) -> Bound:
        """The log-likelihood, where no point need be a stray and rates are below one."""
        with torch.autocast(images.device.type, enabled=False):
            order, values = [], []
            for scenes, _, places in self.alike(images):
                order.append(scenes)
                values.append(self.joint(places).logsumexp(1))
        return Bound({"points": torch.cat(values)[torch.cat(order).argsort()]}, images)

    @torch.no_grad()
    def owners(self, images: Tensor, solved: int = 0, starts: int = 0) -> Tensor:
        c = self.options
        found = torch.full((len(images), images[0, 0].numel()), -1, device=images.device)
        for scenes, kept, places in self.alike(images):
            ways = covers(places.shape[1], c.num_caps, c.votes)
            best = ways.groups.to(places.device)[self.joint(places).argmax(1)]
            has = ways.members.to(places.device)[best].long()
            found[scenes[:, None], kept] = torch.where(has.any(1), has.argmax(1), -1)
        return found

    @torch.no_grad()
    def find(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Poses in the likeliest cover by its likeliest votes [B,J,2,3], and who has points [B,J].

        The pose of an object without points is the identity.
        """
        c, owners = self.options, self.owners(images)
        places, _ = self.points(images)
        numbers = places.new_tensor([1.0, 0, 0, 0]).repeat(len(images), c.num_caps, 1)
        for size in range(1, c.votes + 1):
            law, orders = self.law(size), covers(size, 1, size).orders[size][0].to(places.device)
            for j in range(c.num_caps):
                scenes = ((owners == j).sum(1) == size).nonzero()[:, 0]
                kept = (owners[scenes] == j).nonzero()[:, 1].view(len(scenes), size)
                ordered = places[scenes[:, None], kept][:, orders].flatten(2)
                score = law.at(ordered)[:, :, j]
                way, votes = score.flatten(1).argmax(1), score.shape[2]
                mine = ordered[torch.arange(len(scenes)), way // votes]
                design, white = law.design[j, way % votes], law.white[j, way % votes]
                off = (white @ (mine - design[..., 0])[..., None]).mT @ white @ design
                numbers[scenes, j] += c.pose_std**2 * off[:, 0]
        present = torch.stack([(owners == j).any(1) for j in range(c.num_caps)], 1)
        return pose_of(numbers), present.to(numbers)

    def encode(self, images: Tensor, *, coupling: bool = False) -> Output:
        poses, present = self.find(images)
        return Output(layers=(Capsules(poses.flatten(2), present),))

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        poses, present = self.find(images)
        return {"t0": present, "t0+A0": torch.cat([present, poses.flatten(1)], 1)}


register(
    "constellation-covers",
    PointCovers,
    PointCoversConfig(),
    "objects whose votes are points, in every way summed",
)
