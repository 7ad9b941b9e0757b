"""Constellations: objects that explain points, each by votes for where its own lie, in any order.

    density at a point = sum over the objects j that are on, and their votes v, of
                         rate_jv Norm(X_j m_jv, std_jv), and a little everywhere

A Poisson process: so many points in expectation, so that an object which is on and has none costs.
Which objects are on is summed out, all 2^J combinations; poses are similarities, since an affine
map fits a triangle to any three points. A set transformer sees the points and says the poses;
`solve` forgets it: poses by EM in closed form, from many starts, with the patterns it learned.
"""

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.errors import TorchcapsError
from torchcaps.functional import exact
from torchcaps.layers import Capsules
from torchcaps.layers.parts import PerCapsule
from torchcaps.layers.sets import SetTransformer
from torchcaps.losses.concrete import log_off, log_on, normal_log_prob
from torchcaps.models.base import Bound, CapsuleModel, ModelConfig, Output
from torchcaps.models.registry import register

NOWHERE = -6.0
"""Log of the density of points that belong to no object: a hundredth of a point on the image."""


@dataclass(frozen=True)
class PointsConfig(ModelConfig):
    """Fields of every model of constellations."""

    in_channels: int = 3
    image_size: int = 4
    num_classes: int = 3
    num_caps: int = 3
    """Objects."""
    votes: int = 4
    """Points that an object may have."""


@dataclass(frozen=True)
class SeenConfig(PointsConfig):
    """Fields of those whose objects a set transformer finds."""

    width: int = 128
    """Width of the set transformer."""
    heads: int = 4
    """Heads of its attention."""
    depth: int = 4
    """Blocks of the set transformer."""


@dataclass(frozen=True)
class ConstellationConfig(SeenConfig):
    family: ClassVar[str] = "constellation"
    presence: float = 0.5
    """How often an object is on before anything is learned."""
    pose_std: float = 1.0
    """The deviation of an object's pose from the identity."""
    min_std: float = 0.01
    """The least deviation of a point from its vote; an image is 2 wide."""


class PointModel(CapsuleModel):
    """What models of constellations share: points, patterns, and a set transformer for most.

    numbers: what the set transformer says of an object
    """

    def __init__(self, config: PointsConfig, numbers: int = 0):
        super().__init__()
        self.config = c = config
        if c.in_channels != 3:
            raise TorchcapsError("A constellation has three channels: x, y, and presence.")
        if isinstance(c, SeenConfig):
            self.gather = SetTransformer(
                3, c.num_caps, 32, width=c.width, heads=c.heads, depth=c.depth, inducing=0
            )
            self.heads = PerCapsule(c.num_caps, 32, 128, numbers)
        self.places = nn.Parameter(0.3 * torch.randn(c.num_caps, c.votes, 2))
        self.shares = nn.Parameter(torch.zeros(c.num_caps, c.votes))
        self.spread = nn.Parameter(torch.full((c.num_caps, c.votes), -1.5))

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"bound", "segments"})

    def points(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Places from -1 to 1 [B,P,2], and which are there [B,P]."""
        self.check_images(images)
        flat = exact(images.flatten(2).transpose(1, 2))
        return (2 * flat[..., :2] - 1) * flat[..., 2:], flat[..., 2]

    def said(self, images: Tensor) -> Tensor:
        """What the set transformer says of each object [B,J,N]."""
        places, there = self.points(images)
        return exact(self.heads(self.gather(torch.cat([places, there[..., None]], -1))))

    def owners(self, images: Tensor, solved: int = 0, starts: int = 0) -> Tensor:
        """The likeliest object of each point, -1: none. -> [B,P]

        solved: rounds of EM in closed form; starts: so many random ones in place of the encoder's
        """
        raise NotImplementedError


class Constellation(PointModel):
    combinations: Tensor

    def __init__(self, config: ConstellationConfig):
        super().__init__(config, 4)
        self.options = c = config
        self.prior = nn.Parameter(torch.tensor(c.presence).logit())
        each = torch.tensor(list(product((0.0, 1.0), repeat=c.num_caps)))
        self.register_buffer("combinations", each, persistent=False)

    def find(self, images: Tensor) -> Tensor:
        """Poses of the objects, as the set transformer says. -> [B,J,2,3]"""
        return similar(self.said(images))

    def near(self, images: Tensor, poses: Tensor) -> Tensor:
        """The log density of each vote at every point. -> [B,P,J,V]"""
        places, _ = self.points(images)
        std = (self.options.min_std + F.softplus(self.spread))[..., None]
        votes = placed(poses, self.places)[:, None]
        near = normal_log_prob(places[:, :, None, None], votes, std).sum(-1)
        return log_on(self.shares) + near

    def scenes(self, images: Tensor, poses: Tensor) -> Tensor:
        """The log-joint of the points and which objects are on. -> [B,2^J]"""
        _, there = self.points(images)
        on = self.combinations
        each = self.near(images, poses).logsumexp(-1)[:, :, None]
        each = each.masked_fill(on == 0, -torch.inf)
        nowhere = each.new_full((), NOWHERE).expand(*each.shape[:3], 1)
        density = torch.cat([each, nowhere], -1).logsumexp(-1)
        expected = on @ self.shares.sigmoid().sum(1)
        chance = on.sum(1) * log_on(self.prior) + (1 - on).sum(1) * log_off(self.prior)
        return (density * there[..., None]).sum(1) - expected + chance

    def bound(self, images: Tensor, noise: bool = True) -> Bound:
        """Poses are point estimates, so that it lacks their entropy."""
        with torch.autocast(images.device.type, enabled=False):
            poses = self.find(exact(images))
            joint = self.scenes(images, poses)
        return Bound({"points": joint.logsumexp(1), "poses": self.log_prior(poses)}, images)

    def log_prior(self, poses: Tensor) -> Tensor:
        """[B,J,2,3] -> [B]"""
        still = torch.eye(2, 3, device=poses.device, dtype=poses.dtype)
        return normal_log_prob(poses, still, self.options.pose_std).sum((1, 2, 3))

    def presences(self, images: Tensor, poses: Tensor) -> Tensor:
        """The chance that each object is on. -> [B,J]"""
        return self.scenes(images, poses).softmax(1) @ self.combinations

    def encode(self, images: Tensor, *, coupling: bool = False) -> Output:
        poses = self.find(images)
        return Output(layers=(Capsules(poses.flatten(2), self.presences(images, poses)),))

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        poses = self.find(images)
        present = self.presences(images, poses)
        return {"t0": present, "t0+A0": torch.cat([present, poses.flatten(1)], 1)}

    def _shares(self, images: Tensor, poses: Tensor) -> Tensor:
        """Shares of votes in each point of the likeliest scene, the dummy's last. -> [B,P,JV+1]"""
        on = self.combinations[self.scenes(images, poses).argmax(1)]
        near = (
            self.near(images, poses).masked_fill(on[:, None, :, None] == 0, -torch.inf).flatten(2)
        )
        nowhere = near.new_full((), NOWHERE).expand(*near.shape[:2], 1)
        return torch.cat([near, nowhere], 2).softmax(2)

    def owners(self, images: Tensor, solved: int = 0, starts: int = 0) -> Tensor:
        poses = self.find(images)
        if starts:
            poses = self._from_anywhere(images, poses, solved, starts)
        elif solved:
            poses = self.solve(images, poses, solved)
        shares = self._shares(images, poses)
        each = shares[..., :-1].unflatten(2, (self.config.num_caps, -1)).sum(3)  # pyright: ignore
        most = torch.cat([each, shares[..., -1:]], 2).argmax(2)
        return torch.where(most == each.shape[2], -1, most)

    @torch.no_grad()
    def solve(self, images: Tensor, poses: Tensor, rounds: int) -> Tensor:
        """Poses by EM: whose each point is in the likeliest scene, then an object's equations."""
        places, there = self.points(images)
        design = design_of(self.places)
        # cos and sin stand twice in a pose
        loose = torch.diag(places.new_tensor([2.0, 2.0, 1.0, 1.0])) / self.options.pose_std**2
        precision = (self.options.min_std + F.softplus(self.spread)).pow(-2)
        for _ in range(rounds):
            shares = self._shares(images, poses)[..., :-1] * there[..., None]
            weight = shares.unflatten(2, design.shape[:2]) * precision
            whole = torch.einsum("bpjv,jvxk,jvxl->bjkl", weight, design, design) + loose
            aim = torch.einsum("bpjv,bpx,jvxk->bjk", weight, places, design) + loose[0]
            poses = pose_of(torch.linalg.solve(whole, aim))
        return poses

    def _from_anywhere(self, images: Tensor, poses: Tensor, rounds: int, starts: int) -> Tensor:
        """The best of poses that EM finds from starts which put two votes on two points."""
        generator = torch.Generator().manual_seed(0)
        best, height = poses, torch.full((len(images),), -torch.inf, device=images.device)
        for _ in range(starts):
            tried = self.solve(images, self._through_two(images, generator), rounds)
            there = self.scenes(images, tried).logsumexp(1)
            better = there > height
            height = torch.where(better, there, height)
            best = torch.where(better[:, None, None, None], tried, best)
        return best

    def _through_two(self, images: Tensor, generator: torch.Generator) -> Tensor:
        places, there = self.points(images)
        batch, objects, votes = len(images), *self.shares.shape
        noise = torch.rand(batch, objects, places.shape[1], generator=generator).to(places)
        picked = (noise * there[:, None]).topk(2, 2).indices
        each = places[:, None].expand(-1, objects, -1, -1)
        ends = each.gather(2, picked[..., None].expand(-1, -1, -1, 2))
        noise = torch.rand(batch, objects, votes, generator=generator).to(places)
        chosen = (noise * self.shares.sigmoid()).topk(2, 2).indices
        own = self.places.expand(batch, -1, -1, -1)
        design = design_of(own.gather(2, chosen[..., None].expand(-1, -1, -1, 2)))
        loose = 1e-4 * torch.eye(4, device=places.device, dtype=places.dtype)
        whole = torch.einsum("bjvxk,bjvxl->bjkl", design, design) + loose
        return pose_of(torch.linalg.solve(whole, torch.einsum("bjvxk,bjvx->bjk", design, ends)))


def design_of(places: Tensor) -> Tensor:
    """What four numbers of a pose (cos, sin, x, y) make of places: [...,2] -> [...,2,4]"""
    x, y = places.unbind(-1)
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    rows = [torch.stack([x, -y, one, zero], -1), torch.stack([y, x, zero, one], -1)]
    return torch.stack(rows, -2)


def pose_of(numbers: Tensor) -> Tensor:
    """Turn and scale (cos, sin), and shift, as a pose. [...,4] -> [...,2,3]"""
    cos, sin, x, y = numbers.unbind(-1)
    return torch.stack([cos, -sin, x, sin, cos, y], -1).unflatten(-1, (2, 3))


def similar(numbers: Tensor) -> Tensor:
    """Scale, angle and shift as a pose. [...,4] -> [...,2,3]"""
    scale, turn, x, y = numbers.unbind(-1)
    scale, angle = scale.sigmoid() + 0.01, 2 * torch.pi * turn
    shift = (5 * x).tanh(), (5 * y).tanh()
    return pose_of(torch.stack([scale * angle.cos(), scale * angle.sin(), *shift], -1))


def placed(poses: Tensor, places: Tensor) -> Tensor:
    """Places of patterns in the image. [B,J,2,3], [J,V,2] or [B,J,V,2] -> [B,J,V,2]"""
    places = places.expand(len(poses), *places.shape[-3:])
    return torch.einsum("bjkl,bjvl->bjvk", poses[..., :2], places) + poses[..., None, :, 2]


register("constellation", Constellation, ConstellationConfig(), "objects that explain points")
