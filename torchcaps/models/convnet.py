"""The ConvNets that the `robustness` paper sets beside CapsNet.

ConvNet-FC      Conv(256,5,1) + Conv(256,5,1) + Conv(128,5,1) + FC(328) + FC(192) + FC(10)
ConvNet-FC(LK)  the same with large kernels and small FC layers; the paper prints no sizes, ours are
                kernels of 9 and FC(160) + FC(96): 10.9M parameters on 36x36, CapsNet has 11.4M
ConvNet-Avg     Conv(256,9,1) + Conv(256,9,2) + global average pooling + FC(10)
ConvNet-R       Conv(256,9,1) + Conv(256,9,2) + FC(160) + FC(10), decoder from the 160 units
ConvNet-CR      the 160 units in ten groups, their sums are logits; the decoder sees one group
ConvNet-CR-SF   ConvNet-CR with squashed features and groups; lengths are class scores
ConvNet-Modern  seven 3x3 convolutions with BatchNorm and GELU, global max pooling: not the paper's,
                but what it would be compared with today

Differs from the paper: it says that a ReLU follows every FC layer; the 160 units have none, since
their sums must be able to be negative and the paper perturbs them from -8 to 8.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.functional import log_odds, safe_norm, squash
from torchcaps.layers import Capsules, ConvStack, MLPDecoder, NormStack, Views
from torchcaps.layers.stem import MODERN_STRIDES, conv_out, max_pool
from torchcaps.models.base import CapsuleModel, ModelConfig, Output, mask_capsules
from torchcaps.models.registry import register


def _places(config: "ConvNetConfig | ConvNetRConfig", strides: tuple[int, ...]) -> int:
    def left(side: int) -> int:
        for stride in strides:
            side = conv_out(side, config.kernel_size, stride)
        return side

    places = config.places(left)
    if not places:
        raise TorchcapsError(
            f"{config.image_size} pixels are too few for kernels of {config.kernel_size}."
        )
    return places


@dataclass(frozen=True)
class ConvNetConfig(ModelConfig):
    family: ClassVar[str] = "convnet"
    oblong: ClassVar[bool] = True
    channels: tuple[int, ...] = (256, 256, 128)
    """Channels of the convolutions."""
    strides: tuple[int, ...] = (1, 1, 1)
    """Strides of the convolutions."""
    kernel_size: int = 5
    """Side of their kernels."""
    pool: Literal["none", "average"] = "none"
    """Whether features are averaged over positions."""
    hidden: tuple[int, ...] = (328, 192)
    """Units of the fully connected layers before the output."""


class ConvNet(CapsuleModel):
    def __init__(self, config: ConvNetConfig):
        super().__init__()
        self.config = config
        self.pool = config.pool
        self.stem = ConvStack(
            config.in_channels, config.channels, config.kernel_size, config.strides
        )
        places = _places(config, config.strides)
        units = config.channels[-1] * (1 if config.pool == "average" else places)
        modules: list[nn.Module] = []
        for out_units in config.hidden:
            modules += [nn.Linear(units, out_units), nn.ReLU()]
            units = out_units
        self.head = nn.Sequential(*modules, nn.Linear(units, config.num_classes))

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.stem(images)

    def answer(self, features: Tensor, coupling: bool = False) -> Output:
        units = features.mean((2, 3)) if self.pool == "average" else features.flatten(1)
        return Output(logits=self.head(units), features=features)


@dataclass(frozen=True)
class ConvNetRConfig(ModelConfig):
    family: ClassVar[str] = "convnet-r"
    oblong: ClassVar[bool] = True
    channels: int = 256
    """Channels of both convolutions."""
    kernel_size: int = 9
    """Side of their kernels."""
    in_dim: int = 8
    """Features are squashed in groups of this many channels (ConvNet-CR-SF)."""
    out_dim: int = 16
    """Units of each class."""
    conditional: bool = False
    """Whether groups are classes and the decoder sees the labelled one (ConvNet-CR)."""
    squash: bool = False
    """Whether features and groups are squashed (ConvNet-CR-SF)."""
    hidden: tuple[int, ...] = (512, 1024)
    """Units of the decoder's hidden layers."""


class ConvNetR(CapsuleModel):
    def __init__(self, config: ConvNetRConfig):
        super().__init__()
        self.config = config
        self.conditional, self.squash = config.conditional, config.squash
        self.grouped = config.conditional
        self.in_dim, self.out_dim = config.in_dim, config.out_dim
        if config.squash and not config.conditional:
            raise TorchcapsError("squash=True needs conditional=True: lengths are class scores.")
        places = _places(config, (1, 2))
        self.stem = ConvStack(config.in_channels, (config.channels,), config.kernel_size, (1,))
        self.conv = nn.Conv2d(config.channels, config.channels, config.kernel_size, 2)
        num_units = config.num_classes * config.out_dim
        self.units = nn.Linear(config.channels * places, num_units)
        self.head = None if config.conditional else nn.Linear(num_units, config.num_classes)
        self.decoder = MLPDecoder(num_units, config.hidden, config.image_shape)

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        features = self.conv(self.stem(images))
        if self.squash:
            return squash(features.unflatten(1, (-1, self.in_dim)), 2).flatten(1, 2)
        return features.relu()

    def answer(self, features: Tensor, coupling: bool = False) -> Output:
        groups = self.units(features.flatten(1)).unflatten(1, (-1, self.out_dim))
        groups = squash(groups) if self.squash else groups
        logits, lengths = self._claims(groups)
        return Output(logits, lengths, features, (Capsules(groups),))

    def _claims(self, groups: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits, and lengths where groups are squashed."""
        if self.squash:
            lengths = safe_norm(groups)
            return log_odds(lengths), lengths
        return groups.sum(-1) if self.head is None else self.head(groups.flatten(1)), None

    def decode(self, poses: Tensor, labels: Tensor | None = None) -> Tensor:
        assert self.decoder is not None
        if not self.conditional:
            return self.decoder(poses.flatten(1))
        labels = self._claims(poses)[0].argmax(-1) if labels is None else labels
        return self.decoder(mask_capsules(poses, labels))


@dataclass(frozen=True)
class ConvNetModernConfig(ModelConfig):
    family: ClassVar[str] = "convnet-modern"
    channels: tuple[int, ...] = (64, 64, 128, 128, 256, 256, 256)
    """Channels of the convolutions."""
    strides: tuple[int, ...] = MODERN_STRIDES
    """Strides of the convolutions."""
    dropout: float = 0.1
    """Share of the pooled features that training drops."""
    rotations: tuple[float, ...] = ()
    """Degrees of further views of the image; features are pooled over views too."""
    scales: tuple[float, ...] = ()
    """Scales of further views."""
    shears: tuple[float, ...] = ()
    """Shears of further views."""
    wander: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Degrees, share of the size and shear by which views stray while the model learns."""


class ConvNetModern(CapsuleModel):
    def __init__(self, config: ConvNetModernConfig):
        super().__init__()
        self.config = c = config
        self.views = Views(c.rotations, c.scales, c.shears, c.wander)
        self.stem = NormStack(c.in_channels, c.channels, c.strides)
        head = nn.Linear(c.channels[-1], c.num_classes)
        self.head = nn.Sequential(nn.Dropout(c.dropout), head)

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.stem(self.views(images)).unflatten(0, (images.shape[0], -1)).flatten(1, 2)

    def answer(self, features: Tensor, coupling: bool = False) -> Output:
        views = features.unflatten(1, (self.views.num_views, -1))
        pooled = max_pool(views.flatten(0, 1)).unflatten(0, views.shape[:2]).max(1).values
        return Output(self.head(pooled), features=views[:, 0])


register("convnet-fc", ConvNet, ConvNetConfig(), "LeNet-like baseline of the CapsNet paper")
register(
    "convnet-fc-lk",
    ConvNet,
    ConvNetConfig(kernel_size=9, hidden=(160, 96)),
    "ConvNet-FC with large kernels and small fully connected layers",
)
register(
    "convnet-avg",
    ConvNet,
    ConvNetConfig(channels=(256, 256), strides=(1, 2), kernel_size=9, pool="average", hidden=()),
    "CapsNet's two convolutions, global average pooling, a linear output",
)
register(
    "convnet-avg-small",
    ConvNet,
    ConvNetConfig(channels=(32, 128), strides=(1, 2), kernel_size=9, pool="average", hidden=()),
    "ConvNet-Avg in a width that a CPU trains in a minute",
)
register(
    "convnet-r", ConvNetR, ConvNetRConfig(), "160 units, a linear output, plain reconstruction"
)
register(
    "convnet-cr",
    ConvNetR,
    ConvNetRConfig(conditional=True),
    "160 units in class groups, conditional reconstruction",
)
register(
    "convnet-cr-sf",
    ConvNetR,
    ConvNetRConfig(conditional=True, squash=True),
    "ConvNet-CR with squashing: CapsNet without transform and routing",
)
register(
    "convnet-modern",
    ConvNetModern,
    ConvNetModernConfig(),
    "seven 3x3 convolutions, BatchNorm, GELU, global max pooling",
)
