"""CapsNet (Sabour et al. 2017) with the five switches of the `robustness` paper.

    Conv(256,9,1) + ReLU -> primary capsules, Conv(256,9,2) as 32 types x 8 -> squash
    -> transform -> routing -> 10 class capsules x 16 -> squash; lengths are class scores
    decoder: FC(512) + FC(1024) + FC(pixels) from the class capsules, all but the true one masked

The fifth switch, the loss, belongs to the task (`--task.loss`). Any registered routing can be used;
for a routing with activations, those of primary capsules are their lengths.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.functional import log_odds, safe_norm
from torchcaps.layers import (
    Capsules,
    ConvStack,
    DenseCaps,
    MLPDecoder,
    Normalize,
    NormStack,
    PrimaryCaps,
    ResNetStack,
    router_with,
)
from torchcaps.layers.stems import MODERN_STRIDES, conv_out
from torchcaps.models.base import Model, ModelConfig, Output, mask_capsules
from torchcaps.models.fields import Count, Iterations, Kernel, SideOrNone
from torchcaps.models.registry import register


@dataclass(frozen=True, kw_only=True)
class CapsNetConfig(ModelConfig):
    family: ClassVar[str] = "capsnet"
    oblong: ClassVar[bool] = True
    backbone: Literal["conv", "resnet", "resnet-256", "norm"] = "conv"
    """One convolution (conv), the residual blocks of `inverted` (resnet; resnet-256: 256 channels
    for 128), or the seven 3x3 convolutions with BatchNorm of ConvNet-Modern (norm); all but the
    first with primary capsules at stride 1."""
    channels: Count = 256
    """Channels of the first convolution, or of the last three with backbone=norm."""
    kernel_size: Kernel = 9
    """Kernel size of both convolutions, or of the primary capsules with another backbone."""
    num_types: Count = 32
    """Types of primary capsule at each position."""
    pose_dim: Count = field(default=8, metadata={"digest": "in_dim"})
    """Entries of a primary capsule's pose."""
    class_pose_dim: Count = field(default=16, metadata={"digest": "out_dim"})
    """Entries of a class capsule's pose."""
    routing: str = "dynamic"
    """Routing to the class capsules: dynamic, uniform, inverted, em, self, vb, or your own."""
    num_iters: Iterations = 3
    """Routing iterations, for iterative routings."""
    transform: Literal["own", "types", "shared"] = "own"
    """One transform per primary capsule (own), per type, shared over positions (types), or one for
    all (shared)."""
    grid: SideOrNone = 0
    """Average the primary capsules to grid x grid positions, so that their number does not grow
    with the image. 0: no average."""
    squash: bool = True
    """Squash poses to lengths below one."""
    reconstruction: Literal["conditional", "plain", "none"] = "conditional"
    """Input of the decoder: the labeled class capsule, all class capsules, or no decoder."""
    hidden: tuple[Count, ...] = (512, 1024)
    """Units of the decoder's hidden layers."""
    normalize: Literal["color", "none"] = "color"
    """Normalize color images as the baselines do, or take all images as they are."""


class CapsNet(Model):
    def __init__(self, config: CapsNetConfig):
        super().__init__()
        self.config = self.options = c = config
        self.conditional, self.squashed = c.reconstruction == "conditional", c.squash
        channels, stride, narrowed = c.channels, 2, lambda side: conv_out(side, c.kernel_size)
        self.normalize = Normalize(c.in_channels)  # does nothing to gray images
        self.stem: nn.Module = ConvStack(c.in_channels, (c.channels,), c.kernel_size, (1,))
        if c.backbone.startswith("resnet"):
            last = 256 if c.backbone == "resnet-256" else 128
            blocks = ResNetStack(c.in_channels, ((64, 3), (last, 4)))
            # weights of earlier versions have this place for the normalization
            self.stem = nn.Sequential(nn.Identity(), blocks)
            channels, stride, narrowed = blocks.out_channels, 1, blocks.out_side
        if c.backbone == "norm":
            widths = (c.channels // 4,) * 2 + (c.channels // 2,) * 2 + (c.channels,) * 3
            self.stem = NormStack(c.in_channels, widths, MODERN_STRIDES)
            stride, narrowed = 1, lambda side: -(-side // 4)
        places = c.places(lambda side: conv_out(narrowed(side), c.kernel_size, stride), c.grid)
        if not places:
            raise TorchcapsError(
                f"{c.image_size} pixels are too few for two convolutions of {c.kernel_size}; "
                "give a smaller kernel_size."
            )
        self.primary = PrimaryCaps(
            in_channels=channels,
            num_types=c.num_types,
            out_dim=c.pose_dim,
            kernel_size=c.kernel_size,
            stride=stride,
            squash=c.squash,
            grid=c.grid,
        )
        routing = "uniform" if c.routing == "none" else c.routing
        self.classes = DenseCaps(
            in_caps=places * c.num_types,
            in_dim=c.pose_dim,
            out_caps=c.num_classes,
            out_dim=c.class_pose_dim,
            routing=router_with(routing, num_iters=c.num_iters, squash=c.squash),
            shared={"own": False, "types": c.num_types, "shared": True}[c.transform],
        )
        if c.reconstruction != "none":
            self.decoder = MLPDecoder(
                in_units=c.num_classes * c.class_pose_dim,
                hidden=c.hidden,
                image_shape=c.image_shape,
            )

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        if self.config.in_channels == 3 and self.options.normalize == "color":
            images = self.normalize(images)
        return self.stem(images)

    def forward_capsules(self, features: Tensor, coupling: bool = False) -> Output:
        primary = Capsules(self.primary(features))
        if self.classes.router.activations:
            primary = primary._replace(activations=safe_norm(primary.poses))
        classes = self.classes(primary.poses, primary.activations, coupling=coupling)
        scores = classes.activations
        if scores is None:
            scores = safe_norm(classes.poses)
        logits = log_odds(scores) if self.squashed else scores
        return Output(logits, scores, features, (primary, classes))

    def decode(self, poses: Tensor, labels: Tensor | None = None) -> Tensor:
        if self.decoder is None:
            return super().decode(poses, labels)
        if not self.conditional:
            return self.decoder(poses.flatten(1))
        labels = safe_norm(poses).argmax(-1) if labels is None else labels
        return self.decoder(mask_capsules(poses, labels))


_CIFAR = CapsNetConfig(in_channels=3, image_size=32, backbone="resnet", reconstruction="none")
_ROWS = ("capsnet-nor", "aff-capsnet-dr", "capsnet-resnet", "capsnet-resnet-256")
"""Rows of tables, which `list_models()` does not show."""
for name, config, summary in (
    ("capsnet", CapsNetConfig(), "CapsNet with dynamic routing (Sabour et al. 2017)"),
    ("capsnet-nor", CapsNetConfig(routing="none"), "CapsNet without routing (uniform coupling)"),
    ("aff-capsnet", CapsNetConfig(routing="none", transform="shared"),
     "CapsNet without routing, one shared transform (Gu & Tresp 2020)"),
    ("aff-capsnet-dr", CapsNetConfig(transform="shared"),
     "CapsNet with a shared transform and dynamic routing"),
    ("capsnet-small", CapsNetConfig(channels=48, num_types=4, hidden=(256, 512)),
     "small CapsNet with dynamic routing for CPUs"),
    ("capsnet-resnet", _CIFAR, "CapsNet with dynamic routing on residual blocks, for CIFAR"),
    ("capsnet-resnet-256", replace(_CIFAR, backbone="resnet-256"),
     "CapsNet with dynamic routing on wider residual blocks, for CIFAR"),
    ("capsnet-modern", CapsNetConfig(backbone="norm", kernel_size=1),
     "CapsNet with dynamic routing on the convolutions of ConvNet-Modern"),
):  # fmt: skip
    register(name, CapsNet, config, summary, listed=name not in _ROWS)
