"""Constellations: objects that explain points, each by votes for where its own lie, in any order.

    p(point) = sum over objects j and their votes v of weight_jv Norm(X_j m_jv, std_jv), and none

    generative     presences and poses of objects have a prior, and the bound is raised
    scae           the stacked capsule autoencoder's: votes that the scene may bend, and presences
                   held by penalties in place of a prior

A set transformer sees the points and says what the objects are. `solve` forgets it: objects by EM
in closed form, from many starts, with what was learned of patterns.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.errors import TorchcapsError
from torchcaps.functional import exact
from torchcaps.layers import Capsules
from torchcaps.layers.parts import PerCapsule
from torchcaps.layers.sets import SetTransformer
from torchcaps.losses.concrete import concrete_kl, log_on, logistic_noise, normal_log_prob
from torchcaps.models.base import Bound, CapsuleModel, ModelConfig, Output
from torchcaps.models.registry import register
from torchcaps.models.scae import entropy


@dataclass(frozen=True)
class ConstellationConfig(ModelConfig):
    family: ClassVar[str] = "constellation"
    in_channels: int = 3
    image_size: int = 4
    num_classes: int = 3
    kind: Literal["generative", "scae"] = "generative"
    """Whose objective it has."""
    num_caps: int = 3
    """Objects."""
    votes: int = 4
    """Points that an object may have."""
    width: int = 128
    """Width of the set transformer."""
    heads: int = 4
    """Heads of its attention."""
    depth: int = 4
    """Blocks of the set transformer."""
    presence: float = 0.5
    """How often an object is on before anything is learned."""
    pose_std: float = 1.0
    """The deviation of an object's pose from the identity."""
    min_std: float = 0.01
    """The least deviation of a point from its vote; an image is 2 wide."""
    noise: float = 4.0
    """Width of the uniform noise on presences of the stacked capsule autoencoder."""
    dynamic: float = 10.0
    """Its weight of the squares of what a scene adds to a pattern."""
    sparsity: float = 10.0
    """Its weight of presences that say how many points an object won."""
    prior_sparsity: float = 1.0
    """Its weight of how many objects are on in a scene, and in how many scenes of a batch."""
    posterior_sparsity: float = 10.0
    """Its weight of entropies of how points are shared out: small in a scene, large over them."""


class Objects(NamedTuple):
    logits: Tensor
    """Of presences [B,J]."""
    location: Tensor
    """Where these logits lie in the posterior [B,J]."""
    poses: Tensor
    """[B,J,2,3]"""
    votes: Tensor
    """Where objects want points [B,J,V,2]."""
    weights: Tensor
    """Log of each vote's weight, not normalised [B,J,V]."""
    std: Tensor
    """[B,J,V] or one for all scenes [J,V]."""
    bent: Tensor
    """Squares of what the scene adds to patterns [B]."""


NONE = -4.6
"""Log of the weight of no object, a hundredth, and of an even density on the image below."""
EVEN = -1.386


class Constellation(CapsuleModel):
    def __init__(self, config: ConstellationConfig):
        super().__init__()
        self.config = self.options = c = config
        if c.in_channels != 3:
            raise TorchcapsError("A constellation has three channels: x, y, and presence.")
        objects, votes = c.num_caps, c.votes
        self.gather = SetTransformer(
            3, objects, 32, width=c.width, heads=c.heads, depth=c.depth, inducing=0
        )
        bends = 2 * votes + 2 * votes if c.kind == "scae" else 0
        self.heads = PerCapsule(objects, 32, 128, 5 + bends)
        self.places = nn.Parameter(0.3 * torch.randn(objects, votes, 2))
        self.shares = nn.Parameter(torch.zeros(objects, votes))
        self.spread = nn.Parameter(torch.full((objects, votes), -1.5))
        first = torch.tensor(c.presence).logit()
        self.prior = nn.Parameter(first, requires_grad=c.kind == "generative")

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"bound", "segments"})

    def points(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Places from -1 to 1 [B,P,2], and which are there [B,P]."""
        self.check_images(images)
        flat = exact(images.flatten(2).transpose(1, 2))
        return (2 * flat[..., :2] - 1) * flat[..., 2:], flat[..., 2]

    def std(self) -> Tensor:
        return self.options.min_std + F.softplus(self.spread)

    def find(self, images: Tensor, noise: bool = False) -> Objects:
        c = self.options
        places, there = self.points(images)
        numbers = exact(self.heads(self.gather(torch.cat([places, there[..., None]], -1))))
        location, pose, bends = numbers[..., 0], numbers[..., 1:5], numbers[..., 5:]
        poses = _similar(pose)
        if c.kind == "scae":
            wide = c.noise if noise else 0.0
            logits = location + (torch.rand_like(location) - 0.5) * wide
            change, on, spread = bends.split([2 * c.votes, c.votes, c.votes], -1)
            change = change.unflatten(-1, (c.votes, 2))
            votes = _placed(poses, self.places + change)
            on = on + self.shares
            weights = log_on(logits)[..., None] + log_on(on + (torch.rand_like(on) - 0.5) * wide)
            std = 0.01 + F.softplus(spread + self.spread + 0.5)
            bent = change.square().sum((1, 2, 3)) / 2
            return Objects(logits, location, poses, votes, weights, std, bent)
        logits = location + logistic_noise(torch.rand_like(location)) if noise else location
        weights = log_on(logits)[..., None] + log_on(self.shares)
        return Objects(logits, location, poses, _placed(poses, self.places), weights, self.std(),
                       location.new_zeros(len(location)))  # fmt: skip

    def joint(self, images: Tensor, found: Objects) -> tuple[Tensor, Tensor]:
        """The log-joint of a point and each vote, the dummy's last [B,P,JV+1]; which are there."""
        places, there = self.points(images)
        std = found.std.expand_as(found.weights)[:, None, ..., None]
        near = normal_log_prob(places[:, :, None, None], found.votes[:, None], std).sum(-1)
        none = found.weights.new_full((len(images), 1), NONE)
        shares = torch.cat([found.weights.flatten(1), none], 1).log_softmax(1)
        near = torch.cat([near.flatten(2), torch.full_like(near[:, :, :1, 0], EVEN)], 2)
        return shares[:, None] + near, there

    def bound(self, images: Tensor, noise: bool = True) -> Bound:
        c = self.options
        with torch.autocast(images.device.type, enabled=False):
            found = self.find(images.float() if images.dtype.itemsize < 4 else images, noise)
            joint, there = self.joint(images, found)
            terms = {"points": (joint.logsumexp(2) * there).sum(1)}
            if c.kind == "generative":
                apart = found.poses - _still(found.poses)
                terms["presences"] = -concrete_kl(found.location, self.prior).sum(1)
                terms["poses"] = normal_log_prob(apart, 0.0, c.pose_std).sum((1, 2, 3))
            else:
                terms |= self._penalties(found, joint, there)
        return Bound(terms, images)

    def _penalties(self, found: Objects, joint: Tensor, there: Tensor) -> dict[str, Tensor]:
        """What the stacked capsule autoencoder adds, some of it of the whole batch."""
        c, batch = self.options, len(there)
        shares = (joint.softmax(2)[..., :-1] * there[..., None]).unflatten(2, (c.num_caps, c.votes))
        mass = shares.sum((1, 3))
        winner = joint[..., :-1].argmax(2) // c.votes
        wins = (F.one_hot(winner, c.num_caps) * there[..., None]).sum(1)
        wrong = F.binary_cross_entropy_with_logits(
            found.logits, (wins > 1).to(found.logits), reduction="none"
        )
        on = found.weights.exp().amax(2)
        even = on.sum(0) - batch / 2  # its code counts two kinds of patterns
        return {
            "dynamic": -c.dynamic * found.bent,
            "sparsity": -c.sparsity * (wrong * (wins > 0)).sum(1),
            "prior_within": -c.prior_sparsity * (on.sum(1) - c.num_caps / 2).square(),
            "prior_between": -c.prior_sparsity * even.square().mean().expand(batch),
            "posterior_within": -c.posterior_sparsity * entropy(mass),
            "posterior_between": c.posterior_sparsity * entropy(mass.sum(0)).expand(batch),
        }

    def encode(self, images: Tensor, *, coupling: bool = False) -> Output:
        found = self.find(images)
        return Output(layers=(Capsules(found.poses.flatten(2), found.logits.sigmoid()),))

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        found = self.find(images)
        both = torch.cat([found.location, found.poses.flatten(1)], 1)
        return {"t0": found.location, "t0+A0": both}

    def owners(self, images: Tensor, solved: int = 0, starts: int = 0) -> Tensor:
        """The likeliest object of each point, -1: none. -> [B,P]

        solved: rounds of EM in closed form; starts: so many random ones in place of the encoder's
        """
        found = self.find(images)
        if starts:
            found = self._from_anywhere(images, found, solved, starts)
        elif solved:
            found = self.solve(images, found, solved)[0]
        joint = self.joint(images, found)[0]
        both = joint[..., :-1].unflatten(2, (self.options.num_caps, self.options.votes))
        each = torch.cat([both.logsumexp(3), joint[..., -1:]], 2)
        most = each.argmax(2)
        return torch.where(most == self.options.num_caps, -1, most)

    @torch.no_grad()
    def solve(self, images: Tensor, found: Objects, rounds: int) -> tuple[Objects, Tensor]:
        """Poses and presences of objects by EM, and what points then have [B]."""
        c = self.options
        places, _ = self.points(images)
        design = _design(self.places)
        joint, there = self.joint(images, found)
        loose = torch.eye(4, device=places.device, dtype=places.dtype) / c.pose_std**2
        for _ in range(rounds):
            shares = (joint.softmax(2)[..., :-1] * there[..., None]).unflatten(2, (c.num_caps, -1))
            weight = shares / self.std().square()
            whole = torch.einsum("bpjv,jvxk,jvxl->bjkl", weight, design, design) + loose
            aim = torch.einsum("bpjv,bpx,jvxk->bjk", weight, places, design) + loose[0]
            poses = _pose(torch.linalg.solve(whole, aim))
            on = (shares.sum((1, 3)) / 3).clamp(1e-4, 1 - 1e-4).logit()
            weights = log_on(on)[..., None] + log_on(self.shares)
            votes = _placed(poses, self.places)
            found = found._replace(logits=on, poses=poses, votes=votes, weights=weights)
            joint, there = self.joint(images, found)
        return found, (joint.logsumexp(2) * there).sum(1)

    def _through_two(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Poses that put two votes of each object on two points of the scene. -> [B,J,2,3]"""
        places, there = self.points(images)
        batch, objects = len(images), self.options.num_caps
        noise = torch.rand(batch, objects, places.shape[1], generator=generator).to(places)
        picked = (noise * there[:, None]).topk(2, 2).indices
        each = places[:, None].expand(-1, objects, -1, -1)
        ends = each.gather(2, picked[..., None].expand(-1, -1, -1, 2))
        noise = torch.rand(batch, objects, self.options.votes, generator=generator).to(places)
        chosen = (noise * self.shares.sigmoid()).topk(2, 2).indices
        own = self.places.expand(batch, -1, -1, -1)
        own = own.gather(2, chosen[..., None].expand(-1, -1, -1, 2))
        loose = 1e-4 * torch.eye(4, device=places.device, dtype=places.dtype)
        design = _design(own)
        whole = torch.einsum("bjvxk,bjvxl->bjkl", design, design) + loose
        return _pose(torch.linalg.solve(whole, torch.einsum("bjvxk,bjvx->bjk", design, ends)))

    def _from_anywhere(self, images: Tensor, found: Objects, rounds: int, starts: int) -> Objects:
        generator = torch.Generator().manual_seed(0)
        best, height = found, torch.full((len(images),), -torch.inf, device=images.device)
        for _ in range(starts):
            poses = self._through_two(images, generator)
            weights = log_on(self.shares).expand_as(found.weights)
            tried = found._replace(poses=poses, votes=_placed(poses, self.places), weights=weights)
            tried, there = self.solve(images, tried, rounds)
            better = there > height
            height = torch.where(better, there, height)
            best = Objects(*(
                old if old.shape[0] != len(images) else
                torch.where(better.view(-1, *[1] * (old.dim() - 1)), new, old)
                for new, old in zip(tried, best, strict=True)
            ))  # fmt: skip
        return best


def _design(places: Tensor) -> Tensor:
    """What four numbers of a pose (cos, sin, x, y) make of places: [...,2] -> [...,2,4]"""
    x, y = places.unbind(-1)
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    rows = [torch.stack([x, -y, one, zero], -1), torch.stack([y, x, zero, one], -1)]
    return torch.stack(rows, -2)


def _pose(numbers: Tensor) -> Tensor:
    """Turn and scale (cos, sin), and shift, as a pose. [...,4] -> [...,2,3]"""
    cos, sin, x, y = numbers.unbind(-1)
    return torch.stack([cos, -sin, x, sin, cos, y], -1).unflatten(-1, (2, 3))


def _still(like: Tensor) -> Tensor:
    return torch.eye(2, 3, device=like.device, dtype=like.dtype)


def _similar(numbers: Tensor) -> Tensor:
    """Scale, angle and shift as a pose. [...,4] -> [...,2,3]"""
    scale, turn, x, y = numbers.unbind(-1)
    scale, angle = scale.sigmoid() + 0.01, 2 * torch.pi * turn
    shift = (5 * x).tanh(), (5 * y).tanh()
    return _pose(torch.stack([scale * angle.cos(), scale * angle.sin(), *shift], -1))


def _placed(poses: Tensor, places: Tensor) -> Tensor:
    """Places of patterns in the image. [B,J,2,3], [J,V,2] or [B,J,V,2] -> [B,J,V,2]"""
    places = places.expand(len(poses), *places.shape[-3:])
    return torch.einsum("bjkl,bjvl->bjvk", poses[..., :2], places) + poses[..., None, :, 2]


register("constellation", Constellation, ConstellationConfig(), "objects that explain points")
register(
    "constellation-scae",
    Constellation,
    ConstellationConfig(kind="scae"),
    "the stacked capsule autoencoder on points",
)
