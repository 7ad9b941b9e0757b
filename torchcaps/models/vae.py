"""A plain variational autoencoder, for comparison with generative capsules.

pixels -> FC + ReLU -> mean and deviation of a code -> FC + ReLU -> FC: pixels, Bernoulli
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.layers import Capsules
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


def _layers(widths: list[int]) -> nn.Sequential:
    made: list[nn.Module] = []
    for wide, narrow in zip(widths, widths[1:], strict=False):
        made += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*made[:-1])


class VAE(CapsuleModel):
    """Its code is one capsule, so that what looks at capsules can look at it."""

    def __init__(self, config: VAEConfig):
        super().__init__()
        self.config = c = config
        pixels = c.in_channels * c.image_size**2
        self.find = _layers([pixels, *c.hidden, 2 * c.units])
        self.decoder = _layers([c.units, *reversed(c.hidden), pixels])

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"bound", "decode", "redraw"})

    def infer(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of the code, each [B,N]."""
        self.check_images(images)
        mean, spread = self.find(images.flatten(1)).float().chunk(2, 1)
        return mean, F.softplus(spread + 0.5) + 1e-3

    def encode(self, images: Tensor, *, coupling: bool = False) -> Output:
        return Output(layers=(Capsules(self.infer(images)[0][:, None]),))

    def _logits(self, code: Tensor) -> Tensor:
        assert self.decoder is not None
        return self.decoder(code).unflatten(1, self.config.image_shape)

    def decode(self, poses: Tensor, labels: Tensor | None = None) -> Tensor:
        return self._logits(poses.flatten(1)).sigmoid()

    def bound(self, images: Tensor, noise: bool = True) -> Bound:
        mean, std = self.infer(images)
        drawn = self._logits(mean + std * torch.randn_like(std) if noise else mean).float()
        wrong = F.binary_cross_entropy_with_logits(drawn, images.float(), reduction="none")
        terms = {"image": -wrong.flatten(1).sum(1), "code": -normal_kl(mean, std).sum(1)}
        return Bound(terms, drawn.sigmoid())

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        mean, std = self.infer(images)
        return {"mu": mean, "mu+sigma": torch.cat([mean, std], 1), "pixels": images.flatten(1)}


register("vae", VAE, VAEConfig(), "a plain variational autoencoder")
