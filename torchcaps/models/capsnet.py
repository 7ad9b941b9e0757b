"""CapsNet (Sabour et al. 2017) as the `robustness` paper takes it apart: five switches.

    Conv(256,9,1) + ReLU -> primary capsules, Conv(256,9,2) as 32 types x 8 -> squash
    -> transform -> routing -> 10 class capsules x 16 -> squash; lengths are class scores
    decoder: FC(512) + FC(1024) + FC(pixels) from the class capsules, all but the true one masked

The fifth switch, the loss, is the recipe's (`--loss.kind`).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.functional import log_odds, safe_norm
from torchcaps.layers import (
    ConvStack,
    DenseCaps,
    MLPDecoder,
    Normalise,
    PrimaryCaps,
    ResNetStack,
)
from torchcaps.layers.stem import conv_out
from torchcaps.models.base import (
    CapsuleModel,
    ModelConfig,
    Output,
    conditional_labels,
    mask_capsules,
)
from torchcaps.models.registry import register


@dataclass(frozen=True)
class CapsNetConfig(ModelConfig):
    family: ClassVar[str] = "capsnet"
    backbone: Literal["conv", "resnet"] = "conv"
    """One convolution, or the residual blocks of `inverted`; then primary capsules at stride 1."""
    channels: int = 256
    """Of the first convolution."""
    kernel_size: int = 9
    """Of both convolutions."""
    num_types: int = 32
    """Types of primary capsule."""
    in_dim: int = 8
    out_dim: int = 16
    routing: Literal["dynamic", "none"] = "dynamic"
    num_iters: int = 3
    transform: Literal["own", "shared"] = "own"
    """A transform for each primary capsule, or one for all."""
    squash: bool = True
    reconstruction: Literal["conditional", "plain", "none"] = "conditional"
    hidden: tuple[int, ...] = (512, 1024)
    """Hidden layers of the decoder."""


class CapsNet(CapsuleModel):
    def __init__(self, config: CapsNetConfig):
        super().__init__()
        self.config = c = config
        self.conditional = c.reconstruction == "conditional"
        self.routed, self.squashed = c.routing == "dynamic", c.squash
        channels, side, stride = c.channels, conv_out(c.image_size, c.kernel_size), 2
        self.stem: nn.Module = ConvStack(c.in_channels, (c.channels,), c.kernel_size, (1,))
        if c.backbone == "resnet":
            blocks = ResNetStack(c.in_channels, ((64, 3), (128, 4)))
            self.stem = nn.Sequential(Normalise(c.in_channels), blocks)
            channels, side, stride = blocks.out_channels, blocks.out_side(c.image_size), 1
        side = conv_out(side, c.kernel_size, stride)
        if side < 1:
            raise TorchcapsError(
                f"{c.image_size} pixels are too few for two convolutions of {c.kernel_size}; "
                "give a smaller kernel_size."
            )
        self.primary = PrimaryCaps(channels, c.num_types, c.in_dim, c.kernel_size, stride, c.squash)
        self.classes = DenseCaps(
            side * side * c.num_types,
            c.in_dim,
            c.num_classes,
            c.out_dim,
            routing="dynamic" if c.routing == "dynamic" else "uniform",
            num_iters=c.num_iters,
            shared=c.transform == "shared",
            squash=c.squash,
        )
        self.decoder = None
        if c.reconstruction != "none":
            self.decoder = MLPDecoder(c.num_classes * c.out_dim, c.hidden, c.image_shape)

    def forward(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        *,
        coupling: bool = False,
        reconstruct: bool = True,
    ) -> Output:
        features = self.stem(images)
        primary = self.primary(features).flatten(1, 3)
        capsules, _, shares = self.classes(primary, coupling=coupling)
        lengths = safe_norm(capsules)
        drawn = None
        if reconstruct and self.decoder is not None:
            drawn = self.decode(capsules, conditional_labels(labels, lengths))
        return Output(
            logits=log_odds(lengths) if self.squashed else lengths,
            lengths=lengths,
            features=features,
            primary=primary,
            coupling=shares,
            capsules=capsules,
            reconstruction=drawn,
        )

    def decode(self, capsules: Tensor, labels: Tensor) -> Tensor:
        if self.decoder is None:
            return super().decode(capsules, labels)
        if not self.conditional:
            return self.decoder(capsules.flatten(1))
        return self.decoder(mask_capsules(capsules, labels))


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
