"""A plain variational autoencoder, the baseline of generative capsules.

pixels -> FC + ReLU -> mean and standard deviation of a code -> FC + ReLU -> FC: pixels, Bernoulli
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.functional import exact
from torchcaps.layers import Capsules
from torchcaps.layers.rotations import Look, look, rotate
from torchcaps.models.base import Bound, Model, ModelConfig, Output
from torchcaps.models.fields import Count, Frames, FramesOrSame
from torchcaps.models.generative.concrete import normal_kl
from torchcaps.models.registry import register


@dataclass(frozen=True, kw_only=True)
class VAEConfig(ModelConfig):
    family: ClassVar[str] = "vae"
    hidden: tuple[Count, ...] = (128,)
    """Units of the hidden layers, from the pixels to the code."""
    units: Count = 10
    """Units of the code."""
    frames: Frames = 1
    """Number of rotations tried for each image in training; the best explained one is kept. See
    layers/rotations.py."""
    test_frames: FramesOrSame = 0
    """Number of rotations in evaluation; 0: as in training."""


def _mlp(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for in_units, out_units in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(in_units, out_units), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class VAE(Model):
    """VAE whose code is returned as one capsule, so that metrics of capsules apply to it."""

    def __init__(self, config: VAEConfig):
        super().__init__()
        self.config = self.options = c = config
        pixels = c.in_channels * c.image_size**2
        self.find = _mlp([pixels, *c.hidden, 2 * c.units])
        self.decoder = _mlp([c.units, *reversed(c.hidden), pixels])

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"bound", "decode", "reconstruct"})

    def look(self, images: Tensor) -> Look:
        """Images in the frame in which they are explained best."""
        self.check_images(images)
        c = self.options
        count = c.frames if self.training else c.test_frames or c.frames
        return look(images, count, self._score, together=self.training)

    def _score(self, images: Tensor, views: Tensor, turns: Tensor) -> Tensor:
        terms = self._bound(images, Look(views, turns), noise=False).terms
        return terms["image"] + terms["code"]

    def infer(self, views: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the code, each [B,N]."""
        mean, std = exact(self.find(views.flatten(1))).chunk(2, 1)
        return mean, F.softplus(std + 0.5) + 1e-3

    def encode(self, images: Tensor, *, coupling: bool = False) -> Output:
        return Output(layers=(Capsules(self.infer(self.look(images).views)[0][:, None]),))

    def forward(self, images: Tensor, *, coupling: bool = False) -> Output:
        frame = self.look(images)
        code = self.infer(frame.views)[0]
        reconstruction = self.decode(code)
        if frame.turns is not None:
            reconstruction = rotate(reconstruction, frame.turns)
        return Output(layers=(Capsules(code[:, None]),), reconstruction=reconstruction)

    def _logits(self, code: Tensor) -> Tensor:
        assert self.decoder is not None
        return self.decoder(code).unflatten(1, self.config.image_shape)

    def decode(self, poses: Tensor, labels: Tensor | None = None) -> Tensor:
        return self._logits(poses.flatten(1)).sigmoid()

    def bound(self, images: Tensor, noise: bool = True) -> Bound:
        frame = self.look(images)
        bound = self._bound(images, frame, noise)
        bound.terms |= frame.terms()
        return bound

    def _bound(self, images: Tensor, frame: Look, noise: bool) -> Bound:
        mean, std = self.infer(frame.views)
        logits = self._logits(mean + std * torch.randn_like(std) if noise else mean)
        with torch.autocast(images.device.type, enabled=False):
            images, logits = exact(images), exact(logits)
            decoded = logits.sigmoid()
            if frame.turns is None:
                error = F.binary_cross_entropy_with_logits(logits, images, reduction="none")
            else:
                decoded = rotate(decoded, frame.turns)
                error = F.binary_cross_entropy(
                    decoded.clamp(1e-6, 1 - 1e-6), images, reduction="none"
                )
        terms = {"image": -error.flatten(1).sum(1), "code": -normal_kl(mean, std).sum(1)}
        return Bound(terms, decoded)

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        mean, std = self.infer(self.look(images).views)
        return {"mu": mean, "mu+sigma": torch.cat([mean, std], 1), "pixels": images.flatten(1)}


register("vae", VAE, VAEConfig(), "variational autoencoder, a baseline")
