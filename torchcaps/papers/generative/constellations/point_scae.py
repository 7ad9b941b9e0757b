"""The stacked capsule autoencoder on points, following the authors' code.

    p(point) = sum over objects j and votes v of weight_jv Norm(X_j (m_jv + change), std_jv) + dummy

The scene may change votes and determines presences and standard deviations. Penalties replace a
prior, some of them over the whole batch. As in the authors' code a vote is the shift of a
similarity with six numbers, whose changes count in the penalty, though four of them move nothing;
and the entropies are those of votes, over all points, absent ones too (`patterns`, `posterior`).
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.functional import exact
from torchcaps.models.base import Bound
from torchcaps.models.fields import Weight
from torchcaps.models.generative.concrete import log_on, normal_log_prob
from torchcaps.models.registry import register
from torchcaps.models.scae.model import posterior_terms, prior_terms, uniform_noise
from torchcaps.papers.generative.constellations.model import (
    EncodedConfig,
    PointModel,
    likeliest,
    placed,
    similar,
)

NONE = -2 * math.log(10)
"""Log of the weight and of the density of a point without a vote."""


@dataclass(frozen=True, kw_only=True)
class PointSCAEConfig(EncodedConfig):
    family: ClassVar[str] = "constellation-scae"
    noise: Weight = 4.0
    """Width of the uniform noise on presence logits in training."""
    dynamic: Weight = 10.0
    """Weight of the squared scene-dependent change of the patterns."""
    sparsity: Weight = 10.0
    """Weight of the loss that trains presences to predict whether an object wins several points."""
    prior_sparsity: Weight = 1.0
    """Weight of the errors of the number of objects per scene and of scenes per object."""
    posterior_sparsity: Weight = 10.0
    """Weight of the entropy, minimized within a scene and maximized over a batch. This is the
    default of the authors' code; their script sets 0."""
    posterior: Literal["votes", "objects"] = field(
        default="votes", metadata={"digest_default": "objects"}
    )
    """Entropies of votes over all points (authors' code), or of objects over points that exist."""
    patterns: Literal["similarities", "places"] = field(
        default="similarities", metadata={"digest_default": "places"}
    )
    """Votes as shifts of similarities (authors' code), or as free positions."""


class Objects(NamedTuple):
    logits: Tensor
    """Presence logits [B,J]."""
    poses: Tensor
    """[B,J,2,3]"""
    votes: Tensor
    """Predicted positions of points [B,J,V,2]."""
    weights: Tensor
    """Log of each vote's presence [B,J,V]."""
    std: Tensor
    """Standard deviation of each vote [B,J,V]."""
    dynamic: Tensor
    """Half the squared scene-dependent change of the patterns [B]."""


class PointSCAE(PointModel):
    def __init__(self, config: PointSCAEConfig):
        self.numbers = 6 if config.patterns == "similarities" else 2
        super().__init__(config, 5 + (self.numbers + 2) * config.votes)
        self.options = config
        if config.patterns == "similarities":
            places = self.places.detach().clamp(-0.9, 0.9).atanh() / 5
            self.places = nn.Parameter(torch.cat([torch.zeros(*places.shape[:2], 4), places], 2))

    def find(self, images: Tensor) -> Objects:
        c = self.options
        logits, pose, change, on, spread = self.describe(images).split(
            [1, 4, self.numbers * c.votes, c.votes, c.votes], -1
        )
        logits, on = self._noisy(logits[..., 0]), self._noisy(on + self.shares)
        poses, change = similar(pose), change.unflatten(-1, (c.votes, self.numbers))
        places = self.places + change
        if c.patterns == "similarities":  # a point is where the composed map puts the origin
            places = (5 * places[..., 4:]).tanh()
        return Objects(
            logits, poses, placed(poses, places),
            log_on(logits)[..., None] + log_on(on),
            0.01 + F.softplus(spread + self.spread + 0.5), change.square().sum((1, 2, 3)) / 2,
        )  # fmt: skip

    def _noisy(self, logits: Tensor) -> Tensor:
        if not self.training:
            return logits
        return uniform_noise(logits, self.options.noise)

    def joint(self, images: Tensor, objects: Objects) -> tuple[Tensor, Tensor]:
        """Log-joint of a point and each vote, the dummy's last [B,P,JV+1]; mask of points [B,P]."""
        points, mask = self.points(images)
        std = objects.std[:, None, ..., None]
        density = normal_log_prob(points[:, :, None, None], objects.votes[:, None], std).sum(-1)
        dummy = objects.weights.new_full((len(images), 1), NONE)
        shares = torch.cat([objects.weights.flatten(1), dummy], 1).log_softmax(1)
        dummy = torch.full_like(density[:, :, :1, 0], NONE)
        return shares[:, None] + torch.cat([density.flatten(2), dummy], 2), mask

    def bound(self, images: Tensor, noise: bool = True) -> Bound:
        """Terms of the authors' objective; `noise` is ignored, the model's mode decides."""
        c = self.options
        with torch.autocast(images.device.type, enabled=False):
            objects = self.find(exact(images))
            joint, mask = self.joint(images, objects)
            mass = joint.softmax(2)[..., :-1]
            if c.posterior == "votes":
                mass = mass.sum(1)
            else:
                shares = mass * mask[..., None]
                mass = shares.unflatten(2, (c.num_caps, c.votes)).sum((1, 3))
            wins = F.one_hot(joint[..., :-1].argmax(2) // c.votes, c.num_caps)
            wins = (wins * mask[..., None]).sum(1)
            errors = F.binary_cross_entropy_with_logits(
                objects.logits, (wins > 1).to(objects.logits), reduction="none"
            )
            terms = {
                "points": (joint.logsumexp(2) * mask).sum(1),
                "dynamic": -c.dynamic * objects.dynamic,
                "sparsity": -c.sparsity * (errors * (wins > 0)).sum(1),
            }
            on, weight = objects.weights.exp().amax(2), c.prior_sparsity
            # the authors' code counts two kinds of patterns
            terms |= prior_terms(on, c.num_caps / 2, len(images) / 2, weight, weight)
            terms |= posterior_terms(mass, c.posterior_sparsity, c.posterior_sparsity)
        return Bound(terms, images)

    def objects(self, images: Tensor) -> tuple[Tensor, Tensor]:
        objects = self.find(images)
        return objects.poses, objects.logits.sigmoid()

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        objects = self.find(images)
        both = torch.cat([objects.logits, objects.poses.flatten(1)], 1)
        return {"presences": objects.logits, "presences+poses": both}

    def owners(self, images: Tensor, solved: int = 0, starts: int = 0) -> Tensor:
        joint = self.joint(images, self.find(images))[0]
        scores = joint[..., :-1].unflatten(2, (self.options.num_caps, -1)).logsumexp(3)
        return likeliest(scores, joint[..., -1:])


register(
    "constellation-scae",
    PointSCAE,
    PointSCAEConfig(),
    "stacked capsule autoencoder on points",
    listed=False,
)
