"""Generative capsules with variational inference (Smith, Schut, Gal, van der Wilk 2020).

A process makes images from objects and their parts (`models/process.py`), and an encoder goes the
other way: a ConvNet gives the parts' posterior, a set transformer that sees nothing but the parts
gives the objects'. `bound` is the evidence bound, term by term. Any number of layers: `num_caps`
from the highest objects to the parts.

Poses are point estimates (`posterior="delta"`: the bound then lacks their entropy and is none) or
Normals ("full"). Ours: `objects="one"`, a prior under which exactly one object is on, summed out;
`frames`, angles from which the encoder looks, so that turned digits need no objects of their own.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.functional import exact
from torchcaps.layers import Capsules
from torchcaps.layers.parts import FromOne, PartEncoder, PerCapsule, geometric
from torchcaps.layers.sets import SetTransformer
from torchcaps.layers.templates import compose
from torchcaps.layers.turns import Look, look
from torchcaps.losses.concrete import logistic_noise
from torchcaps.models.base import CapsuleModel, Output, register_output
from torchcaps.models.process import CapsuleBound, GenerativeConfig, Layer, Process
from torchcaps.models.registry import register


@register_output
@dataclass
class GenerativeOutput(Output):
    presences: tuple[Tensor, ...] = field(
        default=(), metadata={"letters": "", "what": "logits of presence of every layer"}
    )
    turns: Tensor | None = field(
        default=None, metadata={"letters": "[B,2,3]", "what": "from the chosen frame to the image"}
    )


class Generative(CapsuleModel):
    def __init__(self, config: GenerativeConfig):
        super().__init__()
        self.config, self.options = config, config
        c = config
        self.full = c.posterior == "full"
        parts = c.num_caps[-1]
        self.process = Process(c)
        # the encoder
        self.find = PartEncoder(c.in_channels, c.image_size, parts, 7, c.channels, c.padding)
        if self.find.where.shape[1] < 1:
            raise TorchcapsError(f"{c.image_size} pixels are too few for four convolutions.")
        self.gather, self.heads = nn.ModuleList(), nn.ModuleList()
        levels = zip(c.num_caps[-2::-1], c.num_caps[:0:-1], strict=True)
        shared = c.state == "shared"
        for objects, children in levels if c.placed == "encoded" else ():
            self.gather.append(
                SetTransformer(
                    7 + children, 1 if shared else objects, 32, width=c.width, heads=c.heads,
                    depth=c.depth, inducing=c.inducing,
                )
            )  # fmt: skip
            head = FromOne(objects, 32, 128, (1, 6)) if shared else PerCapsule(objects, 32, 128, 7)
            self.heads.append(head)
        self.spreads = nn.ParameterList(
            nn.Parameter(torch.full((count, 2, 3), math.log(0.015)))
            for count in c.num_caps[::-1]
            if self.full
        )

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"bound", "redraw", "parts", "sample"})

    def _layer(self, numbers: Tensor, level: int, noise: bool) -> Layer:
        numbers = exact(numbers)
        location, pose = numbers[..., 0], numbers[..., 1:]
        if level or self.options.poses == "raw":
            start = torch.eye(2, 3, device=pose.device, dtype=pose.dtype)
            start = start * (1.0 if level else self.process.scale)
            mean = pose.unflatten(-1, (2, 3)) + start
        else:
            mean = geometric(pose, self.process.scale)
        std = self.spreads[level].exp().expand_as(mean) if self.full else None
        logits, poses = location / self.options.tau, mean
        if noise:
            logits = (location + logistic_noise(torch.rand_like(location))) / self.options.tau
            poses = mean if std is None else mean + std * torch.randn_like(mean)
        return Layer(location, mean, std, logits, poses)

    def look(self, images: Tensor) -> Look:
        """Images from the frame in which they are explained best."""
        c = self.options
        count = c.frames if self.training else c.test_frames or c.frames
        return look(images, count, self._explained, together=self.training)

    def _explained(self, images: Tensor, views: Tensor, turns: Tensor) -> Tensor:
        bound = self.bound_of(images, self.infer(views), turns=turns)
        return torch.stack(list(bound.terms.values())).sum(0)

    def infer(self, images: Tensor, noise: bool = False) -> list[Layer]:
        """The posterior of every layer, from the parts up, each seeing a draw of the one below."""
        self.check_images(images)
        layers = [self._layer(self.find(images), 0, noise)]
        if self.options.placed == "solved":
            poses = self.process.settle(layers[0])
            nothing = poses.new_zeros(poses.shape[:2])
            return [*layers, Layer(nothing, poses, None, nothing, poses)]
        for level, (gather, head) in enumerate(zip(self.gather, self.heads, strict=True), 1):
            below = layers[-1]
            count = below.location.shape[1]
            name = torch.eye(count, device=images.device, dtype=below.mean.dtype)
            members = [below.poses.flatten(2), below.logits.sigmoid()[..., None]]
            members = torch.cat([*members, name.expand(images.shape[0], -1, -1)], -1)
            layers.append(self._layer(head(gather(members)), level, noise))
        return layers

    def bound(self, images: Tensor, noise: bool = True) -> CapsuleBound:
        """Every term of the bound for each image; without noise at the posterior's means."""
        seen = self.look(images)
        bound = self.bound_of(images, self.infer(seen.views, noise), turns=seen.turns)
        bound.terms |= seen.terms()
        return bound

    def bound_of(
        self,
        images: Tensor,
        layers: list[Layer],
        sampled: bool = False,
        turns: Tensor | None = None,
    ) -> CapsuleBound:
        """The bound at latent numbers that are given: see `Process.bound`."""
        return self.process.bound(images, layers, sampled, turns)

    def encode(self, images: Tensor, *, coupling: bool = False) -> GenerativeOutput:
        """Means of the posterior; coupling: the posterior over selections, without the dummy."""
        seen = self.look(images)
        layers = self.infer(seen.views)
        selections, joint = self.process.explain(layers)
        presences = [layer.location for layer in layers]
        if joint is not None:  # the heads' own presences are asked nothing then
            chosen = joint.log_softmax(1).clamp(max=-1e-6)
            presences[-1] = chosen - (-torch.expm1(chosen)).log()
        shares = [said.softmax(-1)[..., 1:] if coupling else None for said in selections]
        capsules = tuple(
            Capsules(layer.mean.flatten(2), present.sigmoid(), share)
            for layer, present, share in zip(layers, presences, [None, *shares], strict=True)
        )
        return GenerativeOutput(layers=capsules, presences=tuple(presences), turns=seen.turns)

    def forward(self, images: Tensor, *, coupling: bool = False) -> GenerativeOutput:
        output = self.encode(images, coupling=coupling)
        parts = output.layers[0].poses.unflatten(-1, (2, 3))
        if output.turns is not None:
            parts = compose(output.turns[:, None], parts)
        output.reconstruction = self.process.templates(parts, output.presences[0].sigmoid())
        return output

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        """Logits of presence of the highest objects, these with poses, and all of the parts."""
        return self.said(images, self.infer(self.look(images).views))

    def said(self, images: Tensor, layers: list[Layer]) -> dict[str, Tensor]:
        """The representations of latent numbers that are given."""
        top, parts = layers[-1], layers[0]
        joint = self.process.explain(layers)[1]
        present = top.location if joint is None else joint.log_softmax(1)
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
    "generative-framed",
    Generative,
    GenerativeConfig(
        num_caps=(32, 16),
        objects="one",
        placed="solved",
        frames=8,
        test_frames=16,
        min_std=0.05,
        pose_std=0.3,
    ),
    "one object on, its pose solved for, seen from the frame that explains it best; ours",
)
register(
    "generative-small",
    Generative,
    GenerativeConfig(num_caps=(8, 8), channels=16, width=32, depth=1, inducing=0),
    "generative capsules, few and narrow, for a CPU",
)
