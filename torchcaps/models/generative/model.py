"""Generative capsules with variational inference (Smith, Schut, Gal, van der Wilk 2020).

A process generates images from objects and their parts (`models/generative/process.py`). An encoder
inverts it: a ConvNet predicts the posterior of the parts, a set transformer that sees only the
parts predicts that of the objects. `bound` is the evidence bound, term by term. Any number of
layers: `num_caps` from the highest objects to the parts.

Poses are point estimates (`posterior="delta"`: the bound then lacks their entropy and is not a
lower bound) or Normals ("full"). Not in the paper: `objects="one"`, a prior under which exactly one
object is on, summed out; `frames`, rotations that the encoder tries, so that rotated digits need no
objects of their own.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.functional import exact
from torchcaps.layers import Capsules
from torchcaps.layers.parts import FromOne, PartEncoder, PerCapsule, geometric
from torchcaps.layers.rotations import Look, look
from torchcaps.layers.sets import SetTransformer
from torchcaps.models.base import Model, Output, described, register_output
from torchcaps.models.generative.concrete import logistic_noise
from torchcaps.models.generative.process import (
    CapsuleBound,
    GenerativeConfig,
    Layer,
    Process,
    rotated,
)
from torchcaps.models.registry import register


@register_output
@dataclass
class GenerativeOutput(Output):
    presences: tuple[Tensor, ...] = described("", "presence logits of every layer", ())
    turns: Tensor | None = described("[B,2,3]", "rotation from the chosen frame to the image")


class Generative(Model):
    coupling_sums = "at most one"

    def __init__(self, config: GenerativeConfig):
        super().__init__()
        self.config, self.options = config, config
        c = config
        self.full = c.posterior == "full"
        parts = c.num_caps[-1]
        self.process = Process(c)
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
        return frozenset({"bound", "reconstruct", "parts", "sample"})

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
        """Images in the frame in which they are explained best."""
        c = self.options
        count = c.frames if self.training else c.test_frames or c.frames
        return look(images, count, self._score, together=self.training)

    def _score(self, images: Tensor, views: Tensor, turns: Tensor) -> Tensor:
        bound = self.bound_of(images, self.infer(views), turns=turns)
        return torch.stack(list(bound.terms.values())).sum(0)

    def infer(self, images: Tensor, noise: bool = False) -> list[Layer]:
        """Posterior of every layer, from the parts up; each layer sees a sample of the one below.

        noise: sample from the posterior, instead of using its means
        """
        self.check_images(images)
        layers = [self._layer(self.find(images), 0, noise)]
        if self.options.placed == "solved":
            poses = self.process.solve_objects(layers[0])
            zeros = poses.new_zeros(poses.shape[:2])
            return [*layers, Layer(zeros, poses, None, zeros, poses)]
        for level, (gather, head) in enumerate(zip(self.gather, self.heads, strict=True), 1):
            below = layers[-1]
            count = below.location.shape[1]
            one_hot = torch.eye(count, device=images.device, dtype=below.mean.dtype)
            tokens = [below.poses.flatten(2), below.logits.sigmoid()[..., None]]
            tokens = torch.cat([*tokens, one_hot.expand(images.shape[0], -1, -1)], -1)
            layers.append(self._layer(head(gather(tokens)), level, noise))
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
        """The bound at these latent variables: see `Process.bound`."""
        return self.process.bound(images, layers, sampled, turns)

    def encode(self, images: Tensor, *, coupling: bool = False) -> GenerativeOutput:
        """Means of the posterior.

        coupling: return the posterior over selections, without the dummy
        """
        seen = self.look(images)
        layers = self.infer(seen.views)
        selections, joint = self.process.explain(layers)
        presences = [layer.location for layer in layers]
        if joint is not None:  # replaces the presences that the heads predict
            log_posterior = joint.log_softmax(1).clamp(max=-1e-6)
            presences[-1] = log_posterior - (-torch.expm1(log_posterior)).log()
        couplings = [s.softmax(-1)[..., 1:] if coupling else None for s in selections]
        capsules = tuple(
            Capsules(layer.mean.flatten(2), presence.sigmoid(), share)
            for layer, presence, share in zip(layers, presences, [None, *couplings], strict=True)
        )
        return GenerativeOutput(layers=capsules, presences=tuple(presences), turns=seen.turns)

    def forward(self, images: Tensor, *, coupling: bool = False) -> GenerativeOutput:
        output = self.encode(images, coupling=coupling)
        parts = rotated(output.layers[0].poses.unflatten(-1, (2, 3)), output.turns)
        output.reconstruction = self.process.templates(parts, output.presences[0].sigmoid())
        return output

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        """Presence logits of the highest objects (t0), these with poses (t0+A0), and the parts."""
        return self.representations_of(images, self.infer(self.look(images).views))

    def representations_of(self, images: Tensor, layers: list[Layer]) -> dict[str, Tensor]:
        """Representations of these latent variables."""
        top, parts = layers[-1], layers[0]
        joint = self.process.explain(layers)[1]
        presence = top.location if joint is None else joint.log_softmax(1)
        return {
            "t0": presence,
            "t0+A0": torch.cat([presence, top.mean.flatten(1)], 1),
            "parts": torch.cat([parts.location, parts.mean.flatten(1)], 1),
            "pixels": images.flatten(1),
        }


_FRAMED = GenerativeConfig(
    num_caps=(32, 16), objects="one", placed="solved", frames=8, test_frames=16, min_std=0.05,
    pose_std=0.3,
)  # fmt: skip
for name, config, summary in (
    ("generative", GenerativeConfig(),
     "generative capsules, variational inference (Smith et al. 2020)"),
    ("generative-one", GenerativeConfig(objects="one", min_std=0.05, inducing=0),
     "generative capsules with exactly one object on"),
    ("generative-one-small", replace(_FRAMED, frames=1, test_frames=1, channels=32),
     "small generative capsules with exactly one object on, for CPUs"),
    ("generative-framed", _FRAMED,
     "generative capsules with one object on and a search over rotations"),
    ("generative-small",
     GenerativeConfig(num_caps=(8, 8), channels=16, width=32, depth=1, inducing=0),
     "small generative capsules for CPUs"),
):  # fmt: skip
    listed = name in ("generative", "generative-one-small")
    register(name, Generative, config, summary, listed=listed)
