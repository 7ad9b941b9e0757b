"""The stacked capsule autoencoder (Kosiorek and others 2019), as its authors' code has it.

    image -> ConvNet, attention -> parts: pose, presence, features -> templates, mixed by pixel
    parts -> set transformer -> objects: pose, presence, votes for the pose of every part

Pixels are a mixture of Normals over templates and a background; parts' poses one over the objects'
votes. Batch by batch, presences are held to a share of the classes: it is told how many there are.
`bound` has the objective's terms, some of them of the whole batch; it bounds nothing.
"""

import math
from dataclasses import dataclass
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
from torchcaps.losses.concrete import normal_log_prob
from torchcaps.models.base import Bound, CapsuleModel, ModelConfig
from torchcaps.models.generative import GenerativeOutput
from torchcaps.models.registry import register

DUMMY = -4 * math.log(10)
"""The log of weight and density of a part that no object votes for."""


@dataclass(frozen=True)
class SCAEConfig(ModelConfig):
    family: ClassVar[str] = "scae"
    num_caps: tuple[int, int] = (32, 40)
    """Objects and parts."""
    template_size: int = 11
    """Side of a part's template in pixels."""
    channels: int = 128
    """Channels of the ConvNet."""
    padding: int = 0
    """Rows of zeros around its maps; without any, 28 pixels end as 2x2 positions."""
    features: int = 16
    """Numbers of a part beside pose and presence; they tint its template."""
    width: int = 16
    """Width of the set transformer."""
    depth: int = 3
    """Blocks of the set transformer."""
    code: int = 256
    """Width of what the set transformer says of an object."""
    noise: float = 4.0
    """Width of the uniform noise on the logits of presences."""
    test_noise: bool = False
    """Whether there is noise after training too, as in the authors' code."""
    attention: Literal["weighted", "hard"] = "weighted"
    """Parts count by their presence, or those below the most present not at all, as in the code."""
    dynamic: float = 10.0
    """Weight of the squares of what an image adds to the relation of object and part."""
    posterior_within: float = 0.7
    """Weight of the entropy of objects in an image: how parts are shared out."""
    posterior_between: float = 0.2
    """Weight of their entropy over a batch, which is made large."""
    prior_within: float = 2.0
    """Weight of the squared error of how many objects are on in an image."""
    prior_between: float = 0.35
    """Weight of the squared error of how many images of a batch an object is on in."""
    objects_on: float = 0.0
    """How many objects are to be on in an image; 0: objects / classes."""


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
    """The presence of an object: its likeliest vote's [B,J]."""
    joint: Tensor
    """The log-joint of object and part, the dummy's last [B,J+1,I]."""
    dynamic: Tensor
    """Half the squares of what the image adds to each relation [B]."""

    @property
    def shares(self) -> Tensor:
        """The posterior of which object a part belongs to [B,J,I]."""
        return self.joint.softmax(1)[:, :-1]


def entropy(shares: Tensor) -> Tensor:
    """The entropy of shares, which need not sum to one. [...,J] -> [...]"""
    shares = shares / shares.sum(-1, keepdim=True).clamp(min=1e-8)
    return -(shares * shares.clamp(min=1e-16).log()).sum(-1)


class SCAE(CapsuleModel):
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
        # templates that are orthogonal to each other, scaled from 0 to 1
        most = max(parts, pixels)
        square = torch.linalg.qr(torch.rand(most, most)).Q[:parts, :pixels]
        square = (square - square.min()) / (square.max() - square.min())
        square = square.reshape(parts, c.in_channels, size, size)
        self.templates = nn.Parameter(square.clone(memory_format=torch.contiguous_format))
        self.mixing = nn.Parameter(torch.zeros(parts, 1, size, size))
        self.tint = nn.Sequential(
            nn.Linear(c.features, 32), nn.ReLU(), nn.Linear(32, c.in_channels)
        )
        self.background = nn.Parameter(torch.zeros(2))  # its logit of brightness, of its weight
        self.gather = PresentSet(7 + c.features + pixels, objects, c.code, c.width, c.depth)
        self.describe = PerCapsule(objects, c.code, 128, 32)
        self.relate = PerCapsule(objects, 33, 128, 6 * parts + 7 + 2 * parts, bias=False)
        self.usual = nn.Parameter(torch.zeros(objects, 7 + 2 * parts))
        self.static = nn.Parameter(torch.empty(objects, parts, 6).uniform_(-0.06, 0.06))

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"bound", "redraw"})

    def _noisy(self, logits: Tensor) -> Tensor:
        if not (self.training or self.options.test_noise):
            return logits
        return logits + (torch.rand_like(logits) - 0.5) * self.options.noise

    def parts(self, images: Tensor) -> Parts:
        self.check_images(images)
        numbers = exact(self.find(images))
        pose, features, logit = numbers.split([6, self.options.features, 1], -1)
        return Parts(geometric(pose, 0.5), self._noisy(logit[..., 0]), features)

    def tinted(self, parts: Parts) -> Tensor:
        """The templates in the colours that features give them. -> [B,I,C,S,S]"""
        return self.templates.sigmoid() * self.tint(parts.features).sigmoid()[..., None, None]

    def mixture(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """Log weights [B,I+1,1,H,W] and means [B,I+1,C,H,W] of every pixel, the background last."""
        with torch.autocast(parts.poses.device.type, enabled=False):
            both = torch.cat([self.templates.sigmoid(), self.mixing], 1)
            drawn = warped(both, parts.poses, self.config.image_size)
            colour = self.tint(parts.features).sigmoid()[..., None, None]
            means, logits = drawn[:, :, :-1] * colour, drawn[:, :, -1:]
            logits = logits + F.logsigmoid(parts.logits)[..., None, None, None]
            bright, weight = self.background[0].sigmoid(), F.softplus(self.background[1])
            means = torch.cat([means, bright.expand_as(means[:, :1])], 1)
            logits = torch.cat([logits, weight.expand_as(logits[:, :1])], 1)
            return logits.log_softmax(1), means

    def votes(self, parts: Parts) -> Votes:
        """What objects say of the parts; what is asked of them does not move the parts."""
        objects, count = self.options.num_caps
        poses, presence = parts.poses.detach(), parts.logits.detach().sigmoid()
        tokens = [poses.flatten(2), 1 - presence[..., None], parts.features]
        tokens = torch.cat([*tokens, self.tinted(parts).detach().flatten(2)], -1)
        hard = self.options.attention == "hard"
        found = self.describe(self.gather(tokens, presence, hard))
        found = torch.cat([found, torch.ones_like(found[..., :1])], -1)
        numbers = exact(self.relate(found))
        with torch.autocast(poses.device.type, enabled=False):
            change, rest = numbers[..., : 6 * count], numbers[..., 6 * count :] + self.usual
            pose, logit, vote_logits, scales = rest.split([6, 1, count, count], -1)
            relation = geometric(change.unflatten(-1, (count, 6)) + self.static, 0.5)
            placed = geometric(pose, 0.5)
            votes = compose(placed[:, :, None], relation)
            spread = (F.softplus(scales + 0.5) + 0.01)[..., None, None]
            there = normal_log_prob(poses[:, None], votes, spread).sum((-2, -1))
            on = F.logsigmoid(self._noisy(logit)) + F.logsigmoid(self._noisy(vote_logits))
            dummy = there.new_full((there.shape[0], 1, count), DUMMY)
            joint = torch.cat([on + there, dummy], 1)
            return Votes(placed, on.exp().amax(-1), joint, change.square().sum((1, 2)) / 2)

    def bound(self, images: Tensor, noise: bool = True) -> Bound:
        """The terms of the authors' objective; noise is as the model's mode has it."""
        c = self.options
        parts = self.parts(images)
        votes = self.votes(parts)
        weights, means = self.mixture(parts)
        with torch.autocast(images.device.type, enabled=False):
            pixels = (weights + normal_log_prob(images[:, None].to(means), means, 1.0)).logsumexp(1)
            present = parts.logits.detach().sigmoid()
            mass, batch = votes.shares.sum(2), len(images)
            wanted = c.objects_on or c.num_caps[0] / c.num_classes
            even = votes.presence.sum(0) - batch / c.num_classes
            terms = {
                "image": pixels.flatten(1).sum(1),
                "parts": (votes.joint.logsumexp(1) * present).sum(1),
                "dynamic": -c.dynamic * votes.dynamic,
                "posterior_within": -c.posterior_within * entropy(mass),
                "posterior_between": c.posterior_between * entropy(mass.sum(0)).expand(batch),
                "prior_within": -c.prior_within * (votes.presence.sum(1) - wanted).square(),
                "prior_between": -c.prior_between * even.square().mean().expand(batch),
            }
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
        """Parts that each object has, presences of objects, these with poses, and pixels."""
        votes = self.votes(self.parts(images))
        return {
            "posterior": votes.shares.sum(2),
            "prior": votes.presence,
            "prior+poses": torch.cat([votes.presence, votes.poses.flatten(1)], 1),
            "pixels": images.flatten(1),
        }


register("scae", SCAE, SCAEConfig(), "the stacked capsule autoencoder, as its code is set")
register(
    "scae-24",
    SCAE,
    SCAEConfig(num_caps=(24, 24)),
    "the stacked capsule autoencoder with 24 objects and 24 parts",
)
