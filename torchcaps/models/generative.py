"""Generative capsules with variational inference (Smith, Schut, Gal, van der Wilk 2020).

    objects: presence t, pose X ~ Norm(identity, 1)  ->  parts: which object, presence, pose
    -> templates placed by their poses, later ones on top -> image ~ Norm(drawn, sigma)

and an encoder that goes the other way: a ConvNet gives the parts' posterior, a set transformer that
sees nothing but the parts gives the objects'. `bound` is the evidence bound with the selection of
an object for each part summed out (`layers/arrangement.py`), term by term. Any number of layers:
`num_caps` from the highest objects to the parts.

Poses are point estimates (`posterior="delta"`: the bound then lacks their entropy and is none) or
Normals ("full"). Ours: `objects="one"`, a prior under which exactly one object is on, summed out.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.layers import Capsules
from torchcaps.layers.arrangement import Arrangement, OnOff
from torchcaps.layers.parts import PartEncoder, PerCapsule, geometric
from torchcaps.layers.sets import SetTransformer
from torchcaps.layers.templates import Templates
from torchcaps.losses.concrete import (
    concrete_kl,
    concrete_log_prob,
    logistic_noise,
    normal_kl,
    normal_log_prob,
)
from torchcaps.models.base import Bound, CapsuleModel, ModelConfig, Output, register_output
from torchcaps.models.registry import register


@dataclass(frozen=True)
class GenerativeConfig(ModelConfig):
    family: ClassVar[str] = "generative"
    num_caps: tuple[int, ...] = (16, 16)
    """Capsules of each layer, from the highest objects to the parts."""
    template_size: int = 12
    """Side of a part's template in pixels."""
    objects: Literal["many", "one"] = "many"
    """Whether each object of the highest layer is on or off by itself, or exactly one is on."""
    posterior: Literal["delta", "full"] = "delta"
    """Poses as point estimates, or as Normals."""
    on_off: OnOff = "mixture"
    """What a part that is neither on nor off does: see layers/arrangement.py."""
    tau: float = 1.0
    """The temperature of every relaxed presence."""
    sigma: float = 0.2
    """The deviation of a pixel."""
    presence: float = 0.12
    """How often an object is on before anything is learned."""
    learn_presence: bool = True
    """Whether that is learned."""
    min_std: float = 0.1
    """The least deviation of a part from where its object wants it."""
    off_std: float = 1.5
    """The deviation of the pose of a part that is off."""
    dummy_std: float = 1.0
    """The deviation of the pose of a part without an object."""
    dummy_share: float = 0.1
    """The weight of having no object, where an object's is at most 1."""
    dummy_presence: float = 0.1
    """How often a part without an object is on."""
    poses: Literal["geometric", "raw"] = "geometric"
    """How the encoder's six numbers make a part's pose."""
    channels: int = 32
    """Channels of the ConvNet."""
    padding: int = 1
    """Rows of zeros around its maps; without any, 28 pixels end as 2x2 positions."""
    width: int = 128
    """Width of the set transformer."""
    heads: int = 4
    """Heads of its attention."""
    depth: int = 4
    """Blocks of the set transformer."""
    inducing: int = 32
    """Learned points through which its members look at each other; 0: directly."""


class Layer(NamedTuple):
    """What the encoder says of the capsules of one layer, and one draw of it."""

    location: Tensor
    """Of the logit of each presence [B,J]."""
    mean: Tensor
    """Of each pose [B,J,2,3]."""
    std: Tensor | None
    """Of its entries, where the posterior has any."""
    logits: Tensor
    """Drawn."""
    poses: Tensor
    """Drawn."""


@dataclass
class CapsuleBound(Bound):
    layers: list[Layer]
    """From the parts to the highest objects."""
    selections: list[Tensor]
    """The log-joint of each selection, [B,I,J+1] for every layer of objects, from the lowest."""
    joint: Tensor | None
    """With exactly one object on: the log-joint of each [B,J]."""


@register_output
@dataclass
class GenerativeOutput(Output):
    presences: tuple[Tensor, ...] = field(
        default=(), metadata={"letters": "", "what": "logits of presence of every layer"}
    )


class Generative(CapsuleModel):
    def __init__(self, config: GenerativeConfig):
        super().__init__()
        self.config, self.options = config, config
        c = config
        if len(c.num_caps) < 2 or min(c.num_caps) < 1:
            raise TorchcapsError(f"num_caps={c.num_caps}: give objects and parts, as (16, 16).")
        if c.objects == "one" and len(c.num_caps) != 2:
            raise TorchcapsError("objects='one' is made for one layer of objects.")
        self.scale = c.template_size / c.image_size
        self.full = c.posterior == "full"
        parts = c.num_caps[-1]
        # the generative part
        self.templates = Templates(parts, c.template_size, c.in_channels, c.image_size)
        self.arrangements = nn.ModuleList(
            Arrangement(
                objects, children, self.scale if n == len(c.num_caps) - 2 else 1.0,
                tau=c.tau, min_std=c.min_std, off_std=c.off_std, dummy_std=c.dummy_std,
                dummy_share=c.dummy_share, dummy_presence=c.dummy_presence, on_off=c.on_off,
            )
            for n, (objects, children) in enumerate(zip(c.num_caps, c.num_caps[1:], strict=False))
        )  # fmt: skip
        first = torch.tensor(c.presence).logit()
        learned = c.learn_presence and c.objects == "many"
        self.presence = nn.Parameter(first, requires_grad=learned)
        # the encoder
        self.find = PartEncoder(c.in_channels, c.image_size, parts, 7, c.channels, c.padding)
        if self.find.where.shape[1] < 1:
            raise TorchcapsError(f"{c.image_size} pixels are too few for four convolutions.")
        self.gather, self.heads = nn.ModuleList(), nn.ModuleList()
        for objects, children in zip(c.num_caps[-2::-1], c.num_caps[:0:-1], strict=True):
            self.gather.append(
                SetTransformer(
                    7 + children, objects, 32, width=c.width, heads=c.heads, depth=c.depth,
                    inducing=c.inducing,
                )
            )  # fmt: skip
            self.heads.append(PerCapsule(objects, 32, 128, 7))
        self.spreads = nn.ParameterList(
            nn.Parameter(torch.full((count, 2, 3), math.log(0.015)))
            for count in c.num_caps[::-1]
            if self.full
        )

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"bound", "redraw"})

    @property
    def generative_parameters(self) -> list[nn.Parameter]:
        """Of templates, arrangements and the objects' presence: what the encoder is not."""
        return [*self.templates.parameters(), *self.arrangements.parameters(), self.presence]

    def _layer(self, numbers: Tensor, level: int, noise: bool) -> Layer:
        numbers = numbers.float() if numbers.dtype in (torch.bfloat16, torch.float16) else numbers
        location, pose = numbers[..., 0], numbers[..., 1:]
        if level or self.options.poses == "raw":
            start = torch.eye(2, 3, device=pose.device, dtype=pose.dtype)
            start = start * (1.0 if level else self.scale)
            mean = pose.unflatten(-1, (2, 3)) + start
        else:
            mean = geometric(pose, self.scale)
        std = self.spreads[level].exp().expand_as(mean) if self.full else None
        logits, poses = location / self.options.tau, mean
        if noise:
            logits = (location + logistic_noise(torch.rand_like(location))) / self.options.tau
            poses = mean if std is None else mean + std * torch.randn_like(mean)
        return Layer(location, mean, std, logits, poses)

    def infer(self, images: Tensor, noise: bool = False) -> list[Layer]:
        """The posterior of every layer, from the parts up, each seeing a draw of the one below."""
        self.check_images(images)
        layers = [self._layer(self.find(images), 0, noise)]
        for level, (gather, head) in enumerate(zip(self.gather, self.heads, strict=True), 1):
            below = layers[-1]
            count = below.location.shape[1]
            name = torch.eye(count, device=images.device, dtype=below.mean.dtype)
            members = [below.poses.flatten(2), below.logits.sigmoid()[..., None]]
            members = torch.cat([*members, name.expand(images.shape[0], -1, -1)], -1)
            layers.append(self._layer(head(gather(members)), level, noise))
        return layers

    def draw(self, parts: Layer) -> Tensor:
        """The image that parts make. -> [B,C,H,W]"""
        return self.templates(parts.poses, parts.logits.sigmoid())

    def bound(self, images: Tensor, noise: bool = True) -> CapsuleBound:
        """Every term of the bound for each image; without noise at the posterior's means."""
        return self.bound_of(images, self.infer(images, noise))

    def bound_of(self, images: Tensor, layers: list[Layer], sampled: bool = False) -> CapsuleBound:
        """The bound at draws that are given; sampled: divergences of the highest layer by its
        draws too, not in closed form.
        """
        with torch.autocast(images.device.type, enabled=False):
            c = self.options
            parts, top = layers[0], layers[-1]
            drawn = self.draw(parts)
            pixels = normal_log_prob(images.to(drawn), drawn, c.sigma)
            terms = {"image": pixels.flatten(1).sum(1)}
            selections = []
            pairs = zip(layers[:-1], layers[1:], reversed(self.arrangements), strict=True)
            joint = None
            for level, (low, high, arrangement) in enumerate(pairs):
                name = f".{level}" if level else ""
                said = arrangement(high.logits, high.poses, low.logits, low.poses)
                if c.objects == "one":
                    said = self._each_alone(arrangement, high, low)
                    joint = said.logsumexp(-1).sum(1) - self._pose_divergence(high, sampled)
                    joint = joint - math.log(joint.shape[1])
                    terms["parts"] = joint.logsumexp(1)
                    said = self._posterior_of_one(said, joint)
                else:
                    terms[f"parts{name}"] = said.logsumexp(-1).sum(1)
                terms[f"part_entropy{name}"] = -self._log_posterior(low)
                selections.append(said)
            if joint is None:
                terms["objects"] = -self._presence_divergence(top, sampled) - self._pose_divergence(
                    top, sampled
                ).sum(1)
        return CapsuleBound(terms, drawn, layers, selections, joint)

    def _log_posterior(self, layer: Layer) -> Tensor:
        """log q of a draw; of point estimates, nothing. -> [B]"""
        found = concrete_log_prob(layer.logits, layer.location, self.options.tau).sum(1)
        if layer.std is None:
            return found
        return found + normal_log_prob(layer.poses, layer.mean, layer.std).sum((1, 2, 3))

    def _presence_divergence(self, top: Layer, sampled: bool) -> Tensor:
        if not sampled:
            return concrete_kl(top.location, self.presence).sum(1)
        tau = self.options.tau
        said = concrete_log_prob(top.logits, top.location, tau)
        return (said - concrete_log_prob(top.logits, self.presence, tau)).sum(1)

    def _pose_divergence(self, top: Layer, sampled: bool) -> Tensor:
        """KL(q(A) || Norm(0, 1)) of each object; of point estimates -log p. -> [B,J]"""
        still = torch.eye(2, 3, device=top.mean.device, dtype=top.mean.dtype)
        if top.std is None:
            return -normal_log_prob(top.poses, still, 1.0).sum((2, 3))
        if sampled:
            said = normal_log_prob(top.poses, top.mean, top.std)
            return (said - normal_log_prob(top.poses, still, 1.0)).sum((2, 3))
        return normal_kl(top.mean - still, top.std).sum((2, 3))

    def _each_alone(self, arrangement: Any, high: Layer, low: Layer) -> Tensor:
        """The log-joint of part and selection with object j alone on. -> [B,I,J,2], dummy first"""
        parts = arrangement.log_parts(high.poses, low.logits, low.poses)
        sure = torch.full_like(high.logits, 30.0)
        chosen, parts = (
            torch.stack([t[..., :1].expand_as(t[..., 1:]), t[..., 1:]], -1)
            for t in (arrangement.log_selection(sure), parts)
        )
        return chosen.log_softmax(-1) + parts

    def _posterior_of_one(self, said: Tensor, joint: Tensor) -> Tensor:
        """Selections with the object summed out, as logs of a posterior [B,I,J+1]."""
        each = said.log_softmax(-1) + joint.log_softmax(1)[:, None, :, None]
        return torch.cat([each[..., 0].logsumexp(2, keepdim=True), each[..., 1]], -1)

    def encode(self, images: Tensor, *, coupling: bool = False) -> GenerativeOutput:
        """Means of the posterior; coupling: the posterior over selections, without the dummy."""
        layers = self.infer(images)
        capsules = [Capsules(layers[0].mean.flatten(2), layers[0].location.sigmoid())]
        arrangements = list(reversed(self.arrangements))
        for low, high, arrangement in zip(layers[:-1], layers[1:], arrangements, strict=True):
            shares = None
            if coupling:
                assert isinstance(arrangement, Arrangement)
                said = arrangement(high.logits, high.poses, low.logits, low.poses)
                shares = said.softmax(-1)[..., 1:]
            capsules.append(Capsules(high.mean.flatten(2), high.location.sigmoid(), shares))
        presences = tuple(layer.location for layer in layers)
        return GenerativeOutput(layers=tuple(capsules), presences=presences)

    def forward(self, images: Tensor, *, coupling: bool = False) -> GenerativeOutput:
        output = self.encode(images, coupling=coupling)
        parts = output.layers[0].poses.unflatten(-1, (2, 3))
        output.reconstruction = self.templates(parts, output.presences[0].sigmoid())
        return output

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        """Logits of presence of the highest objects, these with poses, and all of the parts."""
        return self.said(images, self.infer(images))

    def said(self, images: Tensor, layers: list[Layer]) -> dict[str, Tensor]:
        """The representations of latent numbers that are given."""
        bound = self.bound_of(images, layers)
        top, parts = layers[-1], layers[0]
        present = top.location if bound.joint is None else bound.joint.log_softmax(1)
        return {
            "t0": present,
            "t0+A0": torch.cat([present, top.mean.flatten(1)], 1),
            "parts": torch.cat([parts.location, parts.mean.flatten(1)], 1),
            "pixels": images.flatten(1),
        }


register(
    "generative", Generative, GenerativeConfig(), "generative capsules, inferred variationally"
)
register(
    "generative-one",
    Generative,
    GenerativeConfig(objects="one", min_std=0.05, inducing=0),
    "the same with exactly one object on, summed out; ours",
)
register(
    "generative-small",
    Generative,
    GenerativeConfig(num_caps=(8, 8), channels=16, width=32, depth=1, inducing=0),
    "generative capsules, few and narrow, for a CPU",
)
