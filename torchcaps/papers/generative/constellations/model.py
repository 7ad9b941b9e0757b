"""Constellations: objects that explain an unordered set of points, each by votes for positions.

    density at a point = sum over the objects j that are on, and their votes v, of
                         rate_jv Norm(X_j m_jv, std_jv), plus a uniform background

A Poisson process: the expected number of points is known, so an object without points is penalized
if it is on. Presences are summed out over all 2^J combinations. Poses are similarities, because an
affine map fits a triangle to any three points. A set transformer predicts the poses from the
points; `solve` needs no encoder and finds poses by EM in closed form with the learned patterns.
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
from torchcaps.models.base import Bound, Model, ModelConfig, Output
from torchcaps.models.fields import Count, CountOrNone, Depth, Few, Positive, Probability, Side
from torchcaps.models.generative.concrete import log_off, log_on, normal_log_prob
from torchcaps.models.registry import register

NOWHERE = -6.0
"""Log of the background density: points without an object, 0.01 expected per image."""


@dataclass(frozen=True, kw_only=True)
class PointsConfig(ModelConfig):
    """Fields of all models of constellations."""

    in_channels: Count = 3
    image_size: Side = 4
    num_classes: CountOrNone = 3
    num_caps: Few = 3
    """Number of objects."""
    votes: Few = 4
    """Maximum number of points of an object."""


@dataclass(frozen=True, kw_only=True)
class PriorConfig(PointsConfig):
    """Fields of models with a prior over objects."""

    presence: Probability = 0.5
    """Initial prior probability that an object is on."""
    pose_std: Positive = 1.0
    """Standard deviation of an object's pose around the identity."""
    min_std: Positive = 0.01
    """Minimum standard deviation of a point around its vote; the image is 2 wide."""


@dataclass(frozen=True, kw_only=True)
class EncodedConfig(PointsConfig):
    """Fields of models with a set transformer as encoder."""

    width: Count = 128
    """Width of the set transformer."""
    heads: Depth = 4
    """Attention heads of the set transformer."""
    depth: Depth = 4
    """Blocks of the set transformer."""


@dataclass(frozen=True, kw_only=True)
class ConstellationConfig(PriorConfig, EncodedConfig):
    family: ClassVar[str] = "constellation"


class PointModel(Model):
    """Base of models of constellations: points, patterns, and an optional set transformer.

    numbers: outputs of the set transformer for each object
    """

    def __init__(self, config: PointsConfig, numbers: int = 0):
        super().__init__()
        self.config = c = config
        if c.in_channels != 3:
            raise TorchcapsError(
                f"in_channels={c.in_channels}: a constellation has three channels: x, y, presence."
            )
        if isinstance(c, EncodedConfig):
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
        """Positions from -1 to 1 [B,P,2], and a mask of the points that exist [B,P]."""
        self.check_images(images)
        flat = exact(images.flatten(2).transpose(1, 2))
        return (2 * flat[..., :2] - 1) * flat[..., 2:], flat[..., 2]

    def describe(self, images: Tensor) -> Tensor:
        """Output of the set transformer for each object [B,J,N]."""
        points, mask = self.points(images)
        return exact(self.heads(self.gather(torch.cat([points, mask[..., None]], -1))))

    def objects(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Poses [B,J,2,3] and presences [B,J] of the objects."""
        raise NotImplementedError

    def owners(self, images: Tensor, solved: int = 0, starts: int = 0) -> Tensor:
        """Likeliest object of each point, -1: no object. -> [B,P]

        solved: iterations of EM in closed form; starts: random starts that replace the encoder's
        """
        raise NotImplementedError

    def encode(self, images: Tensor, *, coupling: bool = False) -> Output:
        poses, presences = self.objects(images)
        return Output(layers=(Capsules(poses.flatten(2), presences),))

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        poses, presences = self.objects(images)
        return {"t0": presences, "t0+A0": torch.cat([presences, poses.flatten(1)], 1)}


class Constellation(PointModel):
    combinations: Tensor

    def __init__(self, config: ConstellationConfig):
        super().__init__(config, 4)
        self.options = c = config
        self.prior = nn.Parameter(torch.tensor(c.presence).logit())
        combinations = torch.tensor(list(product((0.0, 1.0), repeat=c.num_caps)))
        self.register_buffer("combinations", combinations, persistent=False)

    @property
    def std(self) -> Tensor:
        """Standard deviation of each vote [J,V]."""
        return self.options.min_std + F.softplus(self.spread)

    def find(self, images: Tensor) -> Tensor:
        """Poses of the objects that the set transformer predicts. -> [B,J,2,3]"""
        return similar(self.describe(images))

    def log_votes(self, images: Tensor, poses: Tensor) -> Tensor:
        """Log density of each vote at every point. -> [B,P,J,V]"""
        points, _ = self.points(images)
        votes = placed(poses, self.places)[:, None]
        log_prob = normal_log_prob(points[:, :, None, None], votes, self.std[..., None]).sum(-1)
        return log_on(self.shares) + log_prob

    def scenes(self, images: Tensor, poses: Tensor) -> Tensor:
        """Log-joint of the points and each combination of objects that are on. -> [B,2^J]"""
        _, mask = self.points(images)
        on = self.combinations
        by_object = self.log_votes(images, poses).logsumexp(-1)[:, :, None]
        by_object = by_object.masked_fill(on == 0, -torch.inf)
        background = by_object.new_full((), NOWHERE).expand(*by_object.shape[:3], 1)
        density = torch.cat([by_object, background], -1).logsumexp(-1)
        expected = on @ self.shares.sigmoid().sum(1)
        prior = on.sum(1) * log_on(self.prior) + (1 - on).sum(1) * log_off(self.prior)
        return (density * mask[..., None]).sum(1) - expected + prior

    def bound(self, images: Tensor, noise: bool = True) -> Bound:
        """The bound with point estimates of poses, without their entropy."""
        with torch.autocast(images.device.type, enabled=False):
            poses = self.find(exact(images))
            joint = self.scenes(images, poses)
        return Bound({"points": joint.logsumexp(1), "poses": self.log_prior(poses)}, images)

    def log_prior(self, poses: Tensor) -> Tensor:
        """Log prior density of poses. [B,J,2,3] -> [B]"""
        identity = torch.eye(2, 3, device=poses.device, dtype=poses.dtype)
        return normal_log_prob(poses, identity, self.options.pose_std).sum((1, 2, 3))

    def objects(self, images: Tensor) -> tuple[Tensor, Tensor]:
        poses = self.find(images)
        return poses, self.scenes(images, poses).softmax(1) @ self.combinations

    def _shares(self, images: Tensor, poses: Tensor) -> Tensor:
        """Posterior over votes for each point in the likeliest scene, the background last.
        -> [B,P,JV+1]
        """
        on = self.combinations[self.scenes(images, poses).argmax(1)]
        votes = self.log_votes(images, poses)
        votes = votes.masked_fill(on[:, None, :, None] == 0, -torch.inf).flatten(2)
        background = votes.new_full((), NOWHERE).expand(*votes.shape[:2], 1)
        return torch.cat([votes, background], 2).softmax(2)

    def owners(self, images: Tensor, solved: int = 0, starts: int = 0) -> Tensor:
        poses = self.find(images)
        if starts:
            poses = self._solve_from_random(images, poses, solved, starts)
        elif solved:
            poses = self.solve(images, poses, solved)
        shares = self._shares(images, poses)
        by_object = shares[..., :-1].unflatten(2, self.shares.shape).sum(3)
        return likeliest(by_object, shares[..., -1:])

    @torch.no_grad()
    def solve(self, images: Tensor, poses: Tensor, rounds: int) -> Tensor:
        """Poses by EM: assign points in the likeliest scene, then solve for each object's pose."""
        points, mask = self.points(images)
        design = design_of(self.places)
        # cos and sin occur twice in a pose
        prior = torch.diag(points.new_tensor([2.0, 2.0, 1.0, 1.0])) / self.options.pose_std**2
        precision = self.std.pow(-2)
        for _ in range(rounds):
            shares = self._shares(images, poses)[..., :-1] * mask[..., None]
            weight = shares.unflatten(2, design.shape[:2]) * precision
            left = torch.einsum("bpjv,jvxk,jvxl->bjkl", weight, design, design) + prior
            right = torch.einsum("bpjv,bpx,jvxk->bjk", weight, points, design) + prior[0]
            poses = pose_of(torch.linalg.solve(left, right))
        return poses

    def _solve_from_random(self, images: Tensor, poses: Tensor, rounds: int, starts: int) -> Tensor:
        """Best poses of EM from random starts that map two votes onto two points."""
        generator = torch.Generator().manual_seed(0)
        best, best_score = poses, torch.full((len(images),), -torch.inf, device=images.device)
        for _ in range(starts):
            solution = self.solve(images, self._random_poses(images, generator), rounds)
            score = self.scenes(images, solution).logsumexp(1)
            better = score > best_score
            best_score = torch.where(better, score, best_score)
            best = torch.where(better[:, None, None, None], solution, best)
        return best

    def _random_poses(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Poses that map two random votes onto two random points. -> [B,J,2,3]"""
        points, mask = self.points(images)
        batch, objects, votes = len(images), *self.shares.shape
        noise = torch.rand(batch, objects, points.shape[1], generator=generator).to(points)
        index = (noise * mask[:, None]).topk(2, 2).indices[..., None].expand(-1, -1, -1, 2)
        targets = points[:, None].expand(-1, objects, -1, -1).gather(2, index)
        noise = torch.rand(batch, objects, votes, generator=generator).to(points)
        index = (noise * self.shares.sigmoid()).topk(2, 2).indices[..., None].expand(-1, -1, -1, 2)
        design = design_of(self.places.expand(batch, -1, -1, -1).gather(2, index))
        ridge = 1e-4 * torch.eye(4, device=points.device, dtype=points.dtype)
        left = torch.einsum("bjvxk,bjvxl->bjkl", design, design) + ridge
        return pose_of(torch.linalg.solve(left, torch.einsum("bjvxk,bjvx->bjk", design, targets)))


def likeliest(objects: Tensor, dummy: Tensor) -> Tensor:
    """Index of the best object of each point, -1: the dummy. [B,P,J], [B,P,1] -> [B,P]"""
    best = torch.cat([objects, dummy], 2).argmax(2)
    return torch.where(best == objects.shape[2], -1, best)


def design_of(places: Tensor) -> Tensor:
    """Matrix from the four numbers of a pose (cos, sin, x, y) to positions. [...,2] -> [...,2,4]"""
    x, y = places.unbind(-1)
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    rows = [torch.stack([x, -y, one, zero], -1), torch.stack([y, x, zero, one], -1)]
    return torch.stack(rows, -2)


def pose_of(numbers: Tensor) -> Tensor:
    """Pose from rotation with scale (cos, sin) and shift. [...,4] -> [...,2,3]"""
    cos, sin, x, y = numbers.unbind(-1)
    return torch.stack([cos, -sin, x, sin, cos, y], -1).unflatten(-1, (2, 3))


def similar(numbers: Tensor) -> Tensor:
    """Pose from scale, angle and shift. [...,4] -> [...,2,3]"""
    scale, angle, x, y = numbers.unbind(-1)
    scale, angle = scale.sigmoid() + 0.01, 2 * torch.pi * angle
    shift = (5 * x).tanh(), (5 * y).tanh()
    return pose_of(torch.stack([scale * angle.cos(), scale * angle.sin(), *shift], -1))


def placed(poses: Tensor, places: Tensor) -> Tensor:
    """Patterns in the coordinates of the image. [B,J,2,3], [J,V,2] or [B,J,V,2] -> [B,J,V,2]"""
    places = places.expand(len(poses), *places.shape[-3:])
    return torch.einsum("bjkl,bjvl->bjvk", poses[..., :2], places) + poses[..., None, :, 2]


register(
    "constellation",
    Constellation,
    ConstellationConfig(),
    "objects for points, a Poisson process",
    listed=False,
)
