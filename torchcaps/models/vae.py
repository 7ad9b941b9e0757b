"""A plain variational autoencoder, for comparison with generative capsules.

pixels -> FC + ReLU -> mean and deviation of a code -> FC + ReLU -> FC: pixels, Bernoulli
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.functional import exact
from torchcaps.layers import Capsules
from torchcaps.layers.turns import Look, look, turned
from torchcaps.losses.concrete import normal_kl
from torchcaps.models.base import Bound, CapsuleModel, ModelConfig, Output
from torchcaps.models.registry import register


@dataclass(frozen=True)
class VAEConfig(ModelConfig):
    family: ClassVar[str] = "vae"
    hidden: tuple[int, ...] = (128,)
    """Units of the hidden layers, from the pixels to the code."""
    units: int = 10
    """Units of the code."""
    frames: int = 1
    """Angles from which the encoder looks at an image while it learns, of which it keeps the best
    explained: see layers/turns.py."""
    test_frames: int = 0
    """Angles afterwards; 0: as many."""


def _layers(widths: list[int]) -> nn.Sequential:
    made: list[nn.Module] = []
    for wide, narrow in zip(widths, widths[1:], strict=False):
        made += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*made[:-1])


class VAE(CapsuleModel):
    """Its code is one capsule, so that what looks at capsules can look at it."""

    def __init__(self, config: VAEConfig):
        super().__init__()
        self.config = self.options = c = config
        pixels = c.in_channels * c.image_size**2
        self.find = _layers([pixels, *c.hidden, 2 * c.units])
        self.decoder = _layers([c.units, *reversed(c.hidden), pixels])

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"bound", "decode", "redraw"})

    def look(self, images: Tensor) -> Look:
        """Images from the frame in which they are explained best."""
        self.check_images(images)
        c = self.options
        count = c.frames if self.training else c.test_frames or c.frames
        return look(images, count, self._explained, together=self.training)

    def _explained(self, images: Tensor, views: Tensor, turns: Tensor) -> Tensor:
        terms = self._bound(images, Look(views, turns), noise=False).terms
        return terms["image"] + terms["code"]

    def infer(self, views: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of the code, each [B,N]."""
        mean, spread = exact(self.find(views.flatten(1))).chunk(2, 1)
        return mean, F.softplus(spread + 0.5) + 1e-3

    def encode(self, images: Tensor, *, coupling: bool = False) -> Output:
        return Output(layers=(Capsules(self.infer(self.look(images).views)[0][:, None]),))

    def forward(self, images: Tensor, *, coupling: bool = False) -> Output:
        seen = self.look(images)
        code = self.infer(seen.views)[0]
        drawn = self.decode(code) if seen.turns is None else turned(self.decode(code), seen.turns)
        return Output(layers=(Capsules(code[:, None]),), reconstruction=drawn)

    def _logits(self, code: Tensor) -> Tensor:
        assert self.decoder is not None
        return self.decoder(code).unflatten(1, self.config.image_shape)

    def decode(self, poses: Tensor, labels: Tensor | None = None) -> Tensor:
        return self._logits(poses.flatten(1)).sigmoid()

    def bound(self, images: Tensor, noise: bool = True) -> Bound:
        seen = self.look(images)
        bound = self._bound(images, seen, noise)
        bound.terms |= seen.terms()
        return bound

    def _bound(self, images: Tensor, seen: Look, noise: bool) -> Bound:
        mean, std = self.infer(seen.views)
        logits = self._logits(mean + std * torch.randn_like(std) if noise else mean)
        with torch.autocast(images.device.type, enabled=False):
            images, logits = exact(images), exact(logits)
            drawn = logits.sigmoid()
            if seen.turns is None:
                wrong = F.binary_cross_entropy_with_logits(logits, images, reduction="none")
            else:
                drawn = turned(drawn, seen.turns)
                wrong = F.binary_cross_entropy(
                    drawn.clamp(1e-6, 1 - 1e-6), images, reduction="none"
                )
        terms = {"image": -wrong.flatten(1).sum(1), "code": -normal_kl(mean, std).sum(1)}
        return Bound(terms, drawn)

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        mean, std = self.infer(self.look(images).views)
        return {"mu": mean, "mu+sigma": torch.cat([mean, std], 1), "pixels": images.flatten(1)}


register("vae", VAE, VAEConfig(), "a plain variational autoencoder")
