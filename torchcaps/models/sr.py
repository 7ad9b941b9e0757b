"""SR-CapsNet (Hahn, Pyeon, Kim: Self-Routing Capsule Networks, 2019), for small images.

ResNet-20's blocks (16-32-64) -> poses and activations by two 3x3 convolutions with BatchNorm
-> (two layers: self-routing in 3x3 windows, stride 2, BatchNorm of poses)
-> class capsules over all positions, which carry no pose; their activations are class shares
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.layers import ConvCaps, Normalise, ResNetStack
from torchcaps.layers.classes import ClassCaps
from torchcaps.layers.patches import TokenNorm
from torchcaps.models.base import CapsuleModel, ModelConfig, Output
from torchcaps.models.registry import register
from torchcaps.routing import Window


@dataclass(frozen=True)
class SRCapsNetConfig(ModelConfig):
    family: ClassVar[str] = "sr-capsnet"
    num_layers: int = 2
    """Of capsules: 1 is the class capsules alone."""
    num_types: int = 32
    dim: int = 16
    channels: int = 16
    """Of the first of three stages of residual blocks."""
    route_std: float = 0.0
    """Of the route weights at the start; 0: zero as in the authors' code, 0.01 in the class layer.
    A small trial learned twice as fast with 0.1 (docs/log.md)."""


class SRCapsNet(CapsuleModel):
    def __init__(self, config: SRCapsNetConfig):
        super().__init__()
        self.config = c = config
        if c.num_layers < 1:
            raise TorchcapsError(f"num_layers={c.num_layers}: there is at least that of classes.")
        self.types = c.num_types
        stem = ResNetStack(c.in_channels, tuple((c.channels * 2**n, 3) for n in range(3)))
        self.stem = nn.Sequential(Normalise(c.in_channels), stem)
        width, size, side = stem.out_channels, c.num_types * c.dim, stem.out_side(c.image_size)
        self.poses = nn.Sequential(_conv(width, size), nn.BatchNorm2d(size))
        self.active = nn.Sequential(_conv(width, c.num_types), nn.BatchNorm2d(c.num_types))
        self.layers, self.norms = nn.ModuleList(), nn.ModuleList()
        for _ in range(c.num_layers - 1):
            caps = (c.num_types, c.dim, c.num_types, c.dim)
            self.layers.append(ConvCaps(*caps, 3, 2, 1, routing="self", route_std=c.route_std))
            self.norms.append(TokenNorm(size))
            side = Window(3, 2, 1).out(side)
        children = side * side * c.num_types
        self.classes = ClassCaps(children, c.dim, c.num_classes, c.route_std or 0.01)
        self.decoder = None

    def forward(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        *,
        coupling: bool = False,
        reconstruct: bool = True,
    ) -> Output:
        features = self.stem(images)
        poses = self.poses(features).permute(0, 2, 3, 1).unflatten(3, (self.types, -1))
        primary = poses.flatten(1, 3)
        active = self.active(features).sigmoid().permute(0, 2, 3, 1)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            poses, active, _ = layer(poses, active)
            poses = norm(poses.flatten(3)).unflatten(3, (self.types, -1))
        shares = self.classes(poses.flatten(1, 3)[:, None], active.flatten(1)[:, None])[:, 0]
        logits = shares.clamp_min(1e-8).log()
        return Output(logits, lengths=shares, features=features, primary=primary)


def _conv(in_channels: int, out_channels: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)


_TWO = SRCapsNetConfig(3, 32)
register("sr-capsnet", SRCapsNet, _TWO, "self-routing in windows on ResNet-20, two layers")
register("sr-capsnet-1", SRCapsNet, replace(_TWO, num_layers=1), "SR-CapsNet of one layer")
