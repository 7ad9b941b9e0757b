"""CapsNet (Sabour et al. 2017) as the `robustness` paper takes it apart: five switches.

    Conv(256,9,1) + ReLU -> primary capsules, Conv(256,9,2) as 32 types x 8 -> squash
    -> transform -> routing -> 10 class capsules x 16 -> squash; lengths are class scores
    decoder: FC(512) + FC(1024) + FC(pixels) from the class capsules, all but the true one masked

The fifth switch, the loss, is the task's (`--task.loss`). Any routing of the library may take the
place of its own; where that reads activations, those of primary capsules are their lengths.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.functional import log_odds, safe_norm
from torchcaps.layers import (
    Capsules,
    ConvStack,
    DenseCaps,
    MLPDecoder,
    Normalise,
    NormStack,
    PrimaryCaps,
    ResNetStack,
    make_router,
)
from torchcaps.layers.stem import MODERN_STRIDES, conv_out
from torchcaps.models.base import CapsuleModel, ModelConfig, Output, mask_capsules
from torchcaps.models.registry import register


@dataclass(frozen=True)
class CapsNetConfig(ModelConfig):
    family: ClassVar[str] = "capsnet"
    oblong: ClassVar[bool] = True
    backbone: Literal["conv", "resnet", "norm"] = "conv"
    """One convolution; or the residual blocks of `inverted`, or the seven 3x3 convolutions with
    BatchNorm of ConvNet-Modern: then primary capsules at stride 1."""
    channels: int = 256
    """Channels of the first convolution; of seven, of the last three."""
    kernel_size: int = 9
    """Side of the kernels: of both convolutions, or of the primary capsules alone."""
    num_types: int = 32
    """Types of primary capsule at each position."""
    in_dim: int = 8
    """Entries of a primary capsule's pose."""
    out_dim: int = 16
    """Entries of a class capsule's pose."""
    routing: str = "dynamic"
    """The routing to the class capsules: dynamic, none, inverted, em, self, vb, or one's own."""
    num_iters: int = 3
    """Iterations of the routing, where it has any."""
    transform: Literal["own", "shared"] = "own"
    """A transform for each primary capsule, or one for all."""
    squash: bool = True
    """Whether poses are squashed to lengths below one."""
    reconstruction: Literal["conditional", "plain", "none"] = "conditional"
    """What the decoder sees: the labelled class capsule, all of them; none: there is no decoder."""
    hidden: tuple[int, ...] = (512, 1024)
    """Units of the decoder's hidden layers."""


class CapsNet(CapsuleModel):
    def __init__(self, config: CapsNetConfig):
        super().__init__()
        self.config = c = config
        self.conditional, self.squashed = c.reconstruction == "conditional", c.squash
        channels, stride, narrowed = c.channels, 2, lambda side: conv_out(side, c.kernel_size)
        self.stem: nn.Module = ConvStack(c.in_channels, (c.channels,), c.kernel_size, (1,))
        if c.backbone == "resnet":
            blocks = ResNetStack(c.in_channels, ((64, 3), (128, 4)))
            self.stem = nn.Sequential(Normalise(c.in_channels), blocks)
            channels, stride, narrowed = blocks.out_channels, 1, blocks.out_side
        if c.backbone == "norm":
            widths = (c.channels // 4,) * 2 + (c.channels // 2,) * 2 + (c.channels,) * 3
            self.stem = NormStack(c.in_channels, widths, MODERN_STRIDES)
            stride, narrowed = 1, lambda side: -(-side // 4)
        places = c.places(lambda side: conv_out(narrowed(side), c.kernel_size, stride))
        if not places:
            raise TorchcapsError(
                f"{c.image_size} pixels are too few for two convolutions of {c.kernel_size}; "
                "give a smaller kernel_size."
            )
        self.primary = PrimaryCaps(channels, c.num_types, c.in_dim, c.kernel_size, stride, c.squash)
        routing = "uniform" if c.routing == "none" else c.routing
        self.classes = DenseCaps(
            places * c.num_types,
            c.in_dim,
            c.num_classes,
            c.out_dim,
            routing=make_router(routing, num_iters=c.num_iters, squash=c.squash),
            shared=c.transform == "shared",
        )
        if c.reconstruction != "none":
            self.decoder = MLPDecoder(c.num_classes * c.out_dim, c.hidden, c.image_shape)

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.stem(images)

    def answer(self, features: Tensor, coupling: bool = False) -> Output:
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


register("capsnet", CapsNet, CapsNetConfig(), "CapsNet with dynamic routing (Sabour et al.)")
register(
    "capsnet-nor",
    CapsNet,
    CapsNetConfig(routing="none"),
    "CapsNet without routing: uniform coupling",
)
register(
    "aff-capsnet",
    CapsNet,
    CapsNetConfig(routing="none", transform="shared"),
    "CapsNet without routing, one transform shared by all children (Gu & Tresp)",
)
register(
    "aff-capsnet-dr",
    CapsNet,
    CapsNetConfig(transform="shared"),
    "CapsNet with a shared transform and dynamic routing",
)
register(
    "capsnet-small",
    CapsNet,
    CapsNetConfig(channels=48, num_types=4, hidden=(256, 512)),
    "CapsNet in a width that a CPU trains in a minute",
)
register(
    "capsnet-resnet",
    CapsNet,
    CapsNetConfig(3, 32, backbone="resnet", reconstruction="none"),
    "dynamic routing on residual blocks, CIFAR",
)
register(
    "capsnet-modern",
    CapsNet,
    CapsNetConfig(backbone="norm", kernel_size=1),
    "dynamic routing on ConvNet-Modern's convolutions, with a decoder",
)
