"""The stacked capsule autoencoder (Kosiorek et al. 2019), following the authors' code.

    image -> ConvNet, attention -> parts: pose, presence, features -> templates, mixed by pixel
    parts -> set transformer -> objects: pose, presence, votes for the pose of every part

Pixels are a mixture of Normals over templates and a background, and the poses of parts a mixture
over the votes of objects. Two penalties keep the presences in a batch near 1 / number of classes,
so the model uses that number. `bound` returns the terms of the objective, some of them over the
whole batch; they are not a lower bound of the likelihood.

Poses and templates are those of the authors' code: a pose rotates a template before it scales and
shears it, and the corners of a template are the centers of its corner pixels (`rotate`,
`align_corners`).
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.errors import TorchcapsError
from torchcaps.functional import exact
from torchcaps.layers import Capsules
from torchcaps.layers.parts import PartEncoder, PerCapsule, geometric
from torchcaps.layers.sets import PresentSet
from torchcaps.layers.templates import compose, warped
from torchcaps.models.base import Bound, Model, ModelConfig
from torchcaps.models.fields import Count, Depth, Side, SideOrNone, Weight
from torchcaps.models.generative.concrete import normal_log_prob
from torchcaps.models.generative.model import GenerativeOutput
from torchcaps.models.registry import register

DUMMY = -4 * math.log(10)
"""Log of weight and density of a part without a vote."""


@dataclass(frozen=True, kw_only=True)
class SCAEConfig(ModelConfig):
    family: ClassVar[str] = "scae"
    num_caps: tuple[Count, Count] = (32, 40)
    """Number of objects and parts."""
    template_size: Side = 11
    """Side of a part's template in pixels."""
    channels: Count = 128
    """Channels of the ConvNet."""
    padding: SideOrNone = 0
    """Zero padding of its convolutions; without padding, 28 pixels end as 2x2 positions."""
    features: Count = 16
    """Features of a part besides pose and presence; they determine the color of its template."""
    width: Count = 16
    """Width of the set transformer."""
    depth: Depth = 3
    """Blocks of the set transformer."""
    code: Count = 256
    """Size of the set transformer's output for each object."""
    noise: Weight = 4.0
    """Width of the uniform noise on presence logits."""
    test_noise: bool = False
    """Add noise in evaluation too, as the authors' code does."""
    attention: Literal["weighted", "hard"] = "weighted"
    """Weight parts by their presence, or attend to the most present part only (authors' code)."""
    rotate: Literal["first", "last"] = field(default="first", metadata={"digest_default": "last"})
    """Rotate before scaling and shearing (authors' code), or after it."""
    align_corners: bool = field(default=True, metadata={"digest_default": False})
    """Let -1 and 1 be the centers of the outermost pixels (authors' code), or their outer edges."""
    dynamic: Weight = 10.0
    """Weight of the squared image-dependent change of the relations of objects and parts."""
    posterior_within: Weight = 0.7
    """Weight of the entropy of objects within an image, which is minimized."""
    posterior_between: Weight = 0.2
    """Weight of the entropy of objects over a batch, which is maximized."""
    prior_within: Weight = 2.0
    """Weight of the squared error of the number of objects that are on in an image."""
    prior_between: Weight = 0.35
    """Weight of the squared error of the number of images of a batch in which an object is on."""
    objects_on: Weight = 0.0
    """Target number of objects that are on in an image; 0: objects / classes."""


class Parts(NamedTuple):
    poses: Tensor
    """[B,I,2,3]"""
    logits: Tensor
    """Logits of presences [B,I]."""
    features: Tensor
    """[B,I,N]"""


class Votes(NamedTuple):
    poses: Tensor
    """Poses of objects [B,J,2,3]."""
    presence: Tensor
    """Presence of an object: that of its likeliest vote [B,J]."""
    joint: Tensor
    """Log-joint of object and part, the dummy's last [B,J+1,I]."""
    dynamic: Tensor
    """Half the squared image-dependent change of the relations [B]."""

    @property
    def shares(self) -> Tensor:
        """Posterior of the object of each part [B,J,I]."""
        return self.joint.softmax(1)[:, :-1]


def entropy(mass: Tensor) -> Tensor:
    """Entropy of nonnegative mass after normalization. [...,J] -> [...]"""
    shares = mass / mass.sum(-1, keepdim=True).clamp(min=1e-8)
    return -(shares * shares.clamp(min=1e-16).log()).sum(-1)


def posterior_terms(mass: Tensor, within: float, between: float) -> dict[str, Tensor]:
    """Sparsity of the posterior mass of objects [B,J]: low entropy per image, high over a batch."""
    return {
        "posterior_within": -within * entropy(mass),
        "posterior_between": between * entropy(mass.sum(0)).expand(len(mass)),
    }


def prior_terms(
    presence: Tensor, objects_on: float, images_on: float, within: float, between: float
) -> dict[str, Tensor]:
    """Squared errors of the number of objects on per image and of images per object.

    presence [B,J]; objects_on, images_on: the targets
    """
    error = presence.sum(0) - images_on
    return {
        "prior_within": -within * (presence.sum(1) - objects_on).square(),
        "prior_between": -between * error.square().mean().expand(len(presence)),
    }


def uniform_noise(logits: Tensor, width: float) -> Tensor:
    """Logits with uniform noise of this width around zero."""
    return logits + (torch.rand_like(logits) - 0.5) * width


class SCAE(Model):
    coupling_sums = "at most one"

    def __init__(self, config: SCAEConfig):
        super().__init__()
        self.config = self.options = c = config
        objects, parts = c.num_caps
        size, pixels = c.template_size, c.in_channels * c.template_size**2
        self.find = PartEncoder(
            c.in_channels, c.image_size, parts, 7 + c.features, c.channels, c.padding, nn.ReLU
        )
        if self.find.where.shape[1] < 1:
            raise TorchcapsError(f"{c.image_size} pixels are too few for four convolutions.")
        # orthogonal templates, scaled to [0, 1]
        side = max(parts, pixels)
        templates = torch.linalg.qr(torch.rand(side, side)).Q[:parts, :pixels]
        templates = (templates - templates.min()) / (templates.max() - templates.min())
        templates = templates.reshape(parts, c.in_channels, size, size)
        self.templates = nn.Parameter(templates.clone(memory_format=torch.contiguous_format))
        self.mixing = nn.Parameter(torch.zeros(parts, 1, size, size))
        self.tint = nn.Sequential(
            nn.Linear(c.features, 32), nn.ReLU(), nn.Linear(32, c.in_channels)
        )
        self.background = nn.Parameter(torch.zeros(2))  # logits of its brightness and weight
        self.gather = PresentSet(7 + c.features + pixels, objects, c.code, c.width, c.depth)
        self.describe = PerCapsule(objects, c.code, 128, 32)
        self.relate = PerCapsule(objects, 33, 128, 6 * parts + 7 + 2 * parts, bias=False)
        self.usual = nn.Parameter(torch.zeros(objects, 7 + 2 * parts))
        self.static = nn.Parameter(torch.empty(objects, parts, 6).uniform_(-0.06, 0.06))

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"bound", "reconstruct"})

    def _posed(self, numbers: Tensor) -> Tensor:
        return geometric(numbers, 0.5, rotate=self.options.rotate)

    def _noisy(self, logits: Tensor) -> Tensor:
        if not (self.training or self.options.test_noise):
            return logits
        return uniform_noise(logits, self.options.noise)

    def parts(self, images: Tensor) -> Parts:
        self.check_images(images)
        numbers = exact(self.find(images))
        pose, features, logit = numbers.split([6, self.options.features, 1], -1)
        return Parts(self._posed(pose), self._noisy(logit[..., 0]), features)

    def tinted(self, parts: Parts) -> Tensor:
        """Templates in the colors that the features determine. -> [B,I,C,S,S]"""
        return self.templates.sigmoid() * self.tint(parts.features).sigmoid()[..., None, None]

    def mixture(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """Log weights [B,I+1,1,H,W] and means [B,I+1,C,H,W] of every pixel, the background last."""
        with torch.autocast(parts.poses.device.type, enabled=False):
            channels = torch.cat([self.templates.sigmoid(), self.mixing], 1)
            placed = warped(
                channels, parts.poses, self.config.image_size,
                align_corners=self.options.align_corners,
            )  # fmt: skip
            color = self.tint(parts.features).sigmoid()[..., None, None]
            means, logits = placed[:, :, :-1] * color, placed[:, :, -1:]
            logits = logits + F.logsigmoid(parts.logits)[..., None, None, None]
            brightness, weight = self.background[0].sigmoid(), F.softplus(self.background[1])
            means = torch.cat([means, brightness.expand_as(means[:, :1])], 1)
            logits = torch.cat([logits, weight.expand_as(logits[:, :1])], 1)
            return logits.log_softmax(1), means

    def votes(self, parts: Parts) -> Votes:
        """Votes of objects for the parts; the parts get no gradient from them."""
        objects, count = self.options.num_caps
        poses, presence = parts.poses.detach(), parts.logits.detach().sigmoid()
        tokens = [poses.flatten(2), 1 - presence[..., None], parts.features]
        tokens = torch.cat([*tokens, self.tinted(parts).detach().flatten(2)], -1)
        hard = self.options.attention == "hard"
        codes = self.describe(self.gather(tokens, presence, hard))
        codes = torch.cat([codes, torch.ones_like(codes[..., :1])], -1)
        numbers = exact(self.relate(codes))
        with torch.autocast(poses.device.type, enabled=False):
            change, rest = numbers[..., : 6 * count], numbers[..., 6 * count :] + self.usual
            pose, logit, vote_logits, scales = rest.split([6, 1, count, count], -1)
            relation = self._posed(change.unflatten(-1, (count, 6)) + self.static)
            object_poses = self._posed(pose)
            votes = compose(object_poses[:, :, None], relation)
            std = (F.softplus(scales + 0.5) + 0.01)[..., None, None]
            likelihood = normal_log_prob(poses[:, None], votes, std).sum((-2, -1))
            on = F.logsigmoid(self._noisy(logit)) + F.logsigmoid(self._noisy(vote_logits))
            dummy = likelihood.new_full((likelihood.shape[0], 1, count), DUMMY)
            joint = torch.cat([on + likelihood, dummy], 1)
            return Votes(object_poses, on.exp().amax(-1), joint, change.square().sum((1, 2)) / 2)

    def bound(self, images: Tensor, noise: bool = True) -> Bound:
        """Terms of the authors' objective; `noise` is ignored, the model's mode decides."""
        c = self.options
        parts = self.parts(images)
        votes = self.votes(parts)
        weights, means = self.mixture(parts)
        with torch.autocast(images.device.type, enabled=False):
            pixels = (weights + normal_log_prob(images[:, None].to(means), means, 1.0)).logsumexp(1)
            presence = parts.logits.detach().sigmoid()
            objects_on = c.objects_on or c.num_caps[0] / c.num_classes
            images_on = len(images) / c.num_classes
            terms = {
                "image": pixels.flatten(1).sum(1),
                "parts": (votes.joint.logsumexp(1) * presence).sum(1),
                "dynamic": -c.dynamic * votes.dynamic,
            }
            mass = votes.shares.sum(2)
            terms |= posterior_terms(mass, c.posterior_within, c.posterior_between)
            terms |= prior_terms(
                votes.presence, objects_on, images_on, c.prior_within, c.prior_between
            )
        return Bound(terms, (weights.exp() * means).sum(1))

    def encode(self, images: Tensor, *, coupling: bool = False) -> GenerativeOutput:
        return self._output(self.parts(images), coupling)

    def _output(self, parts: Parts, coupling: bool) -> GenerativeOutput:
        votes = self.votes(parts)
        shares = votes.shares.mT if coupling else None
        return GenerativeOutput(
            layers=(
                Capsules(parts.poses.flatten(2), parts.logits.sigmoid()),
                Capsules(votes.poses.flatten(2), votes.presence, shares),
            ),
            presences=(parts.logits, votes.presence.logit(1e-6)),
        )

    def forward(self, images: Tensor, *, coupling: bool = False) -> GenerativeOutput:
        parts = self.parts(images)
        output = self._output(parts, coupling)
        weights, means = self.mixture(parts)
        output.reconstruction = (weights.exp() * means).sum(1)
        return output

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        """Posterior mass of objects, their presences, presences with poses, and pixels."""
        votes = self.votes(self.parts(images))
        return {
            "posterior": votes.shares.sum(2),
            "prior": votes.presence,
            "prior+poses": torch.cat([votes.presence, votes.poses.flatten(1)], 1),
            "pixels": images.flatten(1),
        }


register("scae", SCAE, SCAEConfig(), "stacked capsule autoencoder (Kosiorek et al. 2019)")
register(
    "scae-24",
    SCAE,
    SCAEConfig(num_caps=(24, 24)),
    "stacked capsule autoencoder with 24 objects and 24 parts",
    listed=False,
)
