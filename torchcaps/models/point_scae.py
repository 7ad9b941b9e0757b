"""The stacked capsule autoencoder on points, as its authors' code has it.

    p(point) = sum over objects j and votes v of weight_jv Norm(X_j (m_jv + bend), std_jv), and none

Votes that the scene may bend, presences and deviations that it sets, and penalties in place of a
prior, some of them of the whole batch.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.functional import exact
from torchcaps.layers import Capsules
from torchcaps.losses.concrete import log_on, normal_log_prob
from torchcaps.models.base import Bound, Output
from torchcaps.models.constellation import PointModel, SeenConfig, placed, similar
from torchcaps.models.registry import register
from torchcaps.models.scae import entropy

NONE = -2 * math.log(10)
"""Log of the weight and of the density of a point that no object votes for."""


@dataclass(frozen=True)
class PointSCAEConfig(SeenConfig):
    family: ClassVar[str] = "constellation-scae"
    noise: float = 4.0
    """Width of the uniform noise on logits of presence while it learns."""
    dynamic: float = 10.0
    """Weight of the squares of what a scene adds to a pattern."""
    sparsity: float = 10.0
    """Weight of presences that say whether an object won more than one point."""
    prior_sparsity: float = 1.0
    """Weight of how many objects are on in a scene, and in how many scenes of a batch each is."""
    posterior_sparsity: float = 10.0
    """Weight of entropies of how points are shared out: small in a scene, large over them."""


class Objects(NamedTuple):
    logits: Tensor
    """Logits of presences [B,J]."""
    poses: Tensor
    """[B,J,2,3]"""
    votes: Tensor
    """Where objects want points [B,J,V,2]."""
    weights: Tensor
    """Log of each vote's presence [B,J,V]."""
    std: Tensor
    """[B,J,V]"""
    bent: Tensor
    """Half the squares of what the scene adds to patterns [B]."""


class PointSCAE(PointModel):
    def __init__(self, config: PointSCAEConfig):
        super().__init__(config, 5 + 4 * config.votes)
        self.options = config

    def find(self, images: Tensor) -> Objects:
        c = self.options
        logits, pose, change, on, spread = self.said(images).split(
            [1, 4, 2 * c.votes, c.votes, c.votes], -1
        )
        logits, on = self._noisy(logits[..., 0]), self._noisy(on + self.shares)
        poses, change = similar(pose), change.unflatten(-1, (c.votes, 2))
        return Objects(
            logits, poses, placed(poses, self.places + change),
            log_on(logits)[..., None] + log_on(on),
            0.01 + F.softplus(spread + self.spread + 0.5), change.square().sum((1, 2, 3)) / 2,
        )  # fmt: skip

    def _noisy(self, logits: Tensor) -> Tensor:
        if not self.training:
            return logits
        return logits + (torch.rand_like(logits) - 0.5) * self.options.noise

    def joint(self, images: Tensor, found: Objects) -> tuple[Tensor, Tensor]:
        """The log-joint of a point and each vote, the dummy's last [B,P,JV+1]; which are there."""
        places, there = self.points(images)
        std = found.std[:, None, ..., None]
        near = normal_log_prob(places[:, :, None, None], found.votes[:, None], std).sum(-1)
        none = found.weights.new_full((len(images), 1), NONE)
        shares = torch.cat([found.weights.flatten(1), none], 1).log_softmax(1)
        near = torch.cat([near.flatten(2), torch.full_like(near[:, :, :1, 0], NONE)], 2)
        return shares[:, None] + near, there

    def bound(self, images: Tensor, noise: bool = True) -> Bound:
        """The terms of the authors' objective; noise is as the model's mode has it."""
        c, batch = self.options, len(images)
        with torch.autocast(images.device.type, enabled=False):
            found = self.find(exact(images))
            joint, there = self.joint(images, found)
            shares = joint.softmax(2)[..., :-1] * there[..., None]
            mass = shares.unflatten(2, (c.num_caps, c.votes)).sum((1, 3))
            wins = F.one_hot(joint[..., :-1].argmax(2) // c.votes, c.num_caps)
            wins = (wins * there[..., None]).sum(1)
            wrong = F.binary_cross_entropy_with_logits(
                found.logits, (wins > 1).to(found.logits), reduction="none"
            )
            on = found.weights.exp().amax(2)
            even = on.sum(0) - batch / 2  # its code counts two kinds of patterns
            terms = {
                "points": (joint.logsumexp(2) * there).sum(1),
                "dynamic": -c.dynamic * found.bent,
                "sparsity": -c.sparsity * (wrong * (wins > 0)).sum(1),
                "prior_within": -c.prior_sparsity * (on.sum(1) - c.num_caps / 2).square(),
                "prior_between": -c.prior_sparsity * even.square().mean().expand(batch),
                "posterior_within": -c.posterior_sparsity * entropy(mass),
                "posterior_between": c.posterior_sparsity * entropy(mass.sum(0)).expand(batch),
            }
        return Bound(terms, images)

    def encode(self, images: Tensor, *, coupling: bool = False) -> Output:
        found = self.find(images)
        return Output(layers=(Capsules(found.poses.flatten(2), found.logits.sigmoid()),))

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        found = self.find(images)
        both = torch.cat([found.logits, found.poses.flatten(1)], 1)
        return {"presences": found.logits, "presences+poses": both}

    def owners(self, images: Tensor, solved: int = 0, starts: int = 0) -> Tensor:
        joint = self.joint(images, self.find(images))[0]
        each = joint[..., :-1].unflatten(2, (self.options.num_caps, -1)).logsumexp(3)
        most = torch.cat([each, joint[..., -1:]], 2).argmax(2)
        return torch.where(most == each.shape[2], -1, most)


register(
    "constellation-scae",
    PointSCAE,
    PointSCAEConfig(),
    "the stacked capsule autoencoder on points",
)
