"""SR-CapsNet (Hahn, Pyeon, Kim: Self-Routing Capsule Networks, 2019), for small images.

ResNet-20's blocks (16-32-64) -> poses and activations by two 3x3 convolutions with BatchNorm
-> (two layers: self-routing in 3x3 windows, stride 2, BatchNorm of poses)
-> class capsules over all positions, without poses; their activations are class probabilities

Differs from the authors' code: the shortcut of a residual block that changes size is a 1x1
convolution with BatchNorm instead of zero padding; colors are divided by CIFAR-10's own standard
deviation.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.layers import Capsules, ConvCaps, Normalize, ResNetStack, SelfRouting
from torchcaps.layers.capsules import ClassCaps
from torchcaps.layers.stems import TokenNorm
from torchcaps.models.base import Model, ModelConfig, Output
from torchcaps.models.fields import Count, Depth, Weight
from torchcaps.models.registry import register
from torchcaps.routing import Window


@dataclass(frozen=True, kw_only=True)
class SRCapsNetConfig(ModelConfig):
    family: ClassVar[str] = "sr-capsnet"
    oblong: ClassVar[bool] = True
    num_layers: Depth = 2
    """Layers of capsules; 1: only the class capsules."""
    num_types: Count = 32
    """Types of capsule at each position."""
    pose_dim: Count = field(default=16, metadata={"digest": "dim"})
    """Entries of a pose."""
    channels: Count = 16
    """Channels of the first of three stages of residual blocks."""
    route_std: Weight = 0.0
    """Standard deviation of the initial route weights; 0: zero as in the authors' code, 0.01 in the
    class layer. A small trial learned twice as fast with 0.1 (docs/lab-notes/log.md)."""


class SRCapsNet(Model):
    def __init__(self, config: SRCapsNetConfig):
        super().__init__()
        self.config = c = config
        if c.num_layers < 1:
            raise TorchcapsError(
                f"num_layers={c.num_layers}: must be at least 1, the layer of class capsules."
            )
        self.types = c.num_types
        stem = ResNetStack(c.in_channels, tuple((c.channels * 2**n, 3) for n in range(3)))
        self.stem = nn.Sequential(Normalize(c.in_channels), stem)
        width, size = stem.out_channels, c.num_types * c.pose_dim
        self.poses = nn.Sequential(_conv(width, size), nn.BatchNorm2d(size))
        self.active = nn.Sequential(_conv(width, c.num_types), nn.BatchNorm2d(c.num_types))
        self.layers, self.norms = nn.ModuleList(), nn.ModuleList()
        for _ in range(c.num_layers - 1):
            layer = ConvCaps(
                in_caps=c.num_types, in_dim=c.pose_dim, out_caps=c.num_types, out_dim=c.pose_dim,
                kernel_size=3, stride=2, padding=1, routing=SelfRouting(route_std=c.route_std),
            )  # fmt: skip
            self.layers.append(layer)
            self.norms.append(TokenNorm(size))
        places = c.places(lambda side: _out_side(stem.out_side(side), c.num_layers - 1))
        children = places * c.num_types
        self.classes = ClassCaps(
            in_caps=children,
            in_dim=c.pose_dim,
            num_classes=c.num_classes,
            route_std=c.route_std or 0.01,
        )

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.stem(images)

    def forward_capsules(self, features: Tensor, coupling: bool = False) -> Output:
        poses = self.poses(features).permute(0, 2, 3, 1).unflatten(3, (self.types, -1))
        active = self.active(features).sigmoid().permute(0, 2, 3, 1)
        layers = [Capsules(poses, active)]
        for layer, norm in zip(self.layers, self.norms, strict=True):
            below = layers[-1]
            above: Capsules = layer(below.poses, below.activations, coupling=coupling)
            poses = norm(above.poses.flatten(3)).unflatten(3, (self.types, -1))
            layers.append(above._replace(poses=poses))
        poses, active, _ = layers[-1]
        assert active is not None
        children = poses.flatten(1, 3)[:, None], active.flatten(1)[:, None]
        poses, active, shares = self.classes(*children, coupling=coupling)
        scores = active[:, 0]
        classes = Capsules(poses, scores, None if shares is None else shares[:, 0])
        return Output(scores.clamp_min(1e-8).log(), scores, features, (*layers, classes))


def _out_side(side: int, layers: int) -> int:
    """Side of the grid after this many layers of windows."""
    for _ in range(layers):
        side = Window(3, 2, 1).out(side)
    return side


def _conv(in_channels: int, out_channels: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)


_TWO = SRCapsNetConfig(in_channels=3, image_size=32)
register("sr-capsnet", SRCapsNet, _TWO, "self-routing capsules on ResNet-20 (Hahn et al. 2019)")
register(
    "sr-capsnet-1",
    SRCapsNet,
    replace(_TWO, num_layers=1),
    "self-routing capsules on ResNet-20, one layer",
    listed=False,
)
