"""Baselines: the ConvNets of the `robustness` paper, CNNs, models of timm, an autoencoder.

ConvNet-FC      Conv(256,5,1) + Conv(256,5,1) + Conv(128,5,1) + FC(328) + FC(192) + FC(10)
ConvNet-FC(LK)  the same with large kernels and small FC layers; the paper prints no sizes, ours are
                kernels of 9 and FC(160) + FC(96): 10.9M parameters on 36x36, CapsNet has 11.4M
ConvNet-Avg     Conv(256,9,1) + Conv(256,9,2) + global average pooling + FC(10)
ConvNet-R       Conv(256,9,1) + Conv(256,9,2) + FC(160) + FC(10), decoder from the 160 units
ConvNet-CR      the 160 units in ten groups, their sums are logits; the decoder sees one group
ConvNet-CR-SF   ConvNet-CR with squashed features and groups; lengths are class scores
ConvNet-Modern  seven 3x3 convolutions with BatchNorm and GELU, global max pooling: not in the
                paper, a modern baseline

Differs from the paper: the paper has a ReLU after every FC layer; here the 160 units have no ReLU,
because their sums must be able to be negative and the paper perturbs them from -8 to 8.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.functional import log_odds, safe_norm, squash
from torchcaps.layers import (
    Capsules,
    ConvStack,
    MLPDecoder,
    Normalize,
    ResNetStack,
)
from torchcaps.layers.stems import MODERN_STRIDES, conv_out, timm_model
from torchcaps.models.base import Model, ModelConfig, Output, mask_capsules
from torchcaps.models.fields import Count, Kernel, Probability, SideOrNone, Stride
from torchcaps.models.multi_view import MultiView, ViewsConfig
from torchcaps.models.registry import register


def _places(config: ModelConfig, kernel_size: int, strides: tuple[int, ...]) -> int:
    """Positions of the map that convolutions leave."""

    def out_side(side: int) -> int:
        for stride in strides:
            side = conv_out(side, kernel_size, stride)
        return side

    places = config.places(out_side)
    if not places:
        raise TorchcapsError(
            f"{config.image_size} pixels are too few for {len(strides)} convolutions with kernels "
            f"of {kernel_size}; use a smaller kernel_size."
        )
    return places


@dataclass(frozen=True, kw_only=True)
class ConvNetConfig(ModelConfig):
    family: ClassVar[str] = "convnet"
    oblong: ClassVar[bool] = True
    channels: tuple[Count, ...] = (256, 256, 128)
    """Channels of the convolutions."""
    strides: tuple[Stride, ...] = (1, 1, 1)
    """Strides of the convolutions."""
    kernel_size: Kernel = 5
    """Kernel size of the convolutions."""
    pool: Literal["none", "average"] = "none"
    """Global pooling of the features."""
    hidden: tuple[Count, ...] = (328, 192)
    """Units of the fully connected layers before the output."""


class ConvNet(Model):
    def __init__(self, config: ConvNetConfig):
        super().__init__()
        self.config = config
        self.pool = config.pool
        self.stem = ConvStack(
            config.in_channels, config.channels, config.kernel_size, config.strides
        )
        places = _places(config, config.kernel_size, config.strides)
        units = config.channels[-1] * (1 if config.pool == "average" else places)
        modules: list[nn.Module] = []
        for out_units in config.hidden:
            modules += [nn.Linear(units, out_units), nn.ReLU()]
            units = out_units
        self.head = nn.Sequential(*modules, nn.Linear(units, config.num_classes))

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.stem(images)

    def forward_capsules(self, features: Tensor, coupling: bool = False) -> Output:
        units = features.mean((2, 3)) if self.pool == "average" else features.flatten(1)
        return Output(logits=self.head(units), features=features)


@dataclass(frozen=True, kw_only=True)
class ConvNetRConfig(ModelConfig):
    family: ClassVar[str] = "convnet-r"
    oblong: ClassVar[bool] = True
    channels: Count = 256
    """Channels of both convolutions."""
    kernel_size: Kernel = 9
    """Kernel size of both convolutions."""
    pose_dim: Count = field(default=8, metadata={"digest": "in_dim"})
    """Channels per group of squashed features (ConvNet-CR-SF)."""
    class_pose_dim: Count = field(default=16, metadata={"digest": "out_dim"})
    """Units per class."""
    conditional: bool = False
    """Use one group of units per class; the decoder sees the labelled group (ConvNet-CR)."""
    squash: bool = False
    """Squash features and groups (ConvNet-CR-SF)."""
    hidden: tuple[Count, ...] = (512, 1024)
    """Units of the decoder's hidden layers."""


class ConvNetR(Model):
    def __init__(self, config: ConvNetRConfig):
        super().__init__()
        self.config = config
        self.conditional, self.squash = config.conditional, config.squash
        self.grouped = config.conditional
        self.in_dim, self.out_dim = config.pose_dim, config.class_pose_dim
        if config.squash and not config.conditional:
            raise TorchcapsError("squash=True needs conditional=True: lengths are class scores.")
        places = _places(config, config.kernel_size, (1, 2))
        self.stem = ConvStack(config.in_channels, (config.channels,), config.kernel_size, (1,))
        self.conv = nn.Conv2d(config.channels, config.channels, config.kernel_size, 2)
        num_units = config.num_classes * config.class_pose_dim
        self.units = nn.Linear(config.channels * places, num_units)
        self.head = None if config.conditional else nn.Linear(num_units, config.num_classes)
        self.decoder = MLPDecoder(
            in_units=num_units, hidden=config.hidden, image_shape=config.image_shape
        )

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        features = self.conv(self.stem(images))
        if self.squash:
            return squash(features.unflatten(1, (-1, self.in_dim)), 2).flatten(1, 2)
        return features.relu()

    def forward_capsules(self, features: Tensor, coupling: bool = False) -> Output:
        groups = self.units(features.flatten(1)).unflatten(1, (-1, self.out_dim))
        groups = squash(groups) if self.squash else groups
        logits, lengths = self._logits(groups)
        return Output(logits, lengths, features, (Capsules(groups),))

    def _logits(self, groups: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits, and the lengths of squashed groups."""
        if self.squash:
            lengths = safe_norm(groups)
            return log_odds(lengths), lengths
        return groups.sum(-1) if self.head is None else self.head(groups.flatten(1)), None

    def decode(self, poses: Tensor, labels: Tensor | None = None) -> Tensor:
        assert self.decoder is not None
        if not self.conditional:
            return self.decoder(poses.flatten(1))
        labels = self._logits(poses)[0].argmax(-1) if labels is None else labels
        return self.decoder(mask_capsules(poses, labels))


@dataclass(frozen=True, kw_only=True)
class ConvNetModernConfig(ViewsConfig):
    family: ClassVar[str] = "convnet-modern"
    channels: tuple[Count, ...] = (64, 64, 128, 128, 256, 256, 256)
    """Channels of the convolutions."""
    strides: tuple[Stride, ...] = MODERN_STRIDES
    """Strides of the convolutions."""
    dropout: Probability = 0.1
    """Dropout rate of the pooled features."""


class ConvNetModern(MultiView):
    def __init__(self, config: ConvNetModernConfig):
        super().__init__(config, config.channels, config.strides)
        head = nn.Linear(config.channels[-1], config.num_classes)
        self.head = nn.Sequential(nn.Dropout(config.dropout), head)

    def forward_capsules(self, features: Tensor, coupling: bool = False) -> Output:
        by_view, pooled = self.pool(features)
        pooled = pooled.unflatten(0, by_view.shape[:2]).max(1).values
        return Output(self.head(pooled), features=by_view[:, 0])


@dataclass(frozen=True, kw_only=True)
class CNNConfig(ModelConfig):
    family: ClassVar[str] = "cnn"
    oblong: ClassVar[bool] = True
    kind: Literal["cifar", "multi", "multi-fc", "resnet18", "resnet20"] = "cifar"
    """Three convolutions for CIFAR, for two digits with pooling (multi) or without (multi-fc),
    ResNet-18, or ResNet-20 of three stages."""
    channels: Count = 1024
    """Channels of the convolutions, or of the first stage of a ResNet."""
    hidden: Count = 640
    """Units before the output, for multi and multi-fc."""


def _block(channels: int, stride: int, padding: int) -> list[nn.Module]:
    conv = nn.Conv2d(channels, channels, 3, stride, padding)
    return [conv, nn.ReLU(), nn.BatchNorm2d(channels)]


class CNN(Model):
    def __init__(self, config: CNNConfig):
        super().__init__()
        self.config = c = config
        width = c.channels
        self.normalize = Normalize(c.in_channels)
        first = [nn.Conv2d(c.in_channels, width, 3, 2, 1), nn.ReLU()]
        pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        if c.kind in ("resnet18", "resnet20"):
            count, blocks = (4, 2) if c.kind == "resnet18" else (3, 3)
            stages = tuple((width * 2**n, blocks) for n in range(count))
            self.stem: nn.Module = ResNetStack(c.in_channels, stages)
            hidden, units = pooled, stages[-1][0]
        elif c.kind == "cifar":
            if min(c.image_shape[1:]) < 8:
                raise TorchcapsError(
                    f"{c.image_size} pixels are too few; this network needs at least 8."
                )
            self.stem = nn.Sequential(
                *first, *_block(width, 2, 1), nn.AvgPool2d(2), *_block(width, 2, 1)
            )
            hidden, units = pooled, width
        else:
            places = c.places(lambda side: ((side + 1) // 2 - 3) // 2 + 1 - 2)
            if not places:
                raise TorchcapsError(f"{c.image_size} pixels are too few for three convolutions.")
            self.stem = nn.Sequential(*first, *_block(width, 2, 0), *_block(width, 1, 0))
            hidden, units = [nn.Conv2d(width, c.hidden, 1), *pooled], c.hidden
            if c.kind == "multi-fc":
                hidden = [nn.Flatten(), nn.Linear(width * places, c.hidden)]
        self.head = nn.Sequential(*hidden, nn.Linear(units, c.num_classes))

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.stem(self.normalize(images))

    def forward_capsules(self, features: Tensor, coupling: bool = False) -> Output:
        return Output(logits=self.head(features), features=features)


@dataclass(frozen=True, kw_only=True)
class TimmConfig(ModelConfig):
    family: ClassVar[str] = "timm"
    network: str = "mobilenetv3_small_100"
    """Name of the model in timm."""
    patch_size: SideOrNone = 0
    """Patch size of a transformer; 0: the model's default."""


class TimmNet(Model):
    def __init__(self, config: TimmConfig):
        super().__init__()
        self.config = c = config
        sizes = {"img_size": c.image_size, "patch_size": c.patch_size} if c.patch_size else {}
        self.normalize = Normalize(c.in_channels)
        self.body = timm_model(
            c.network, in_chans=c.in_channels, num_classes=c.num_classes, **sizes
        )

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.body.forward_features(self.normalize(images))

    def forward_capsules(self, features: Tensor, coupling: bool = False) -> Output:
        return Output(logits=self.body.forward_head(features), features=features)

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        features = self.forward_features(images)
        return {"features": self.body.forward_head(features, pre_logits=True)}


@dataclass(frozen=True, kw_only=True)
class AutoencoderConfig(ModelConfig):
    family: ClassVar[str] = "autoencoder"
    oblong: ClassVar[bool] = True
    channels: Count = 256
    """Channels of both convolutions."""
    kernel_size: Kernel = 9
    """Kernel size of both convolutions."""
    units: Count = 256
    """Units of the code."""
    hidden: tuple[Count, ...] = (512, 1024)
    """Units of the decoder's hidden layers."""


class Autoencoder(Model):
    """Autoencoder that returns its code as one capsule, so that capsule metrics apply to it."""

    def __init__(self, config: AutoencoderConfig):
        super().__init__()
        self.config = c = config
        places = _places(c, c.kernel_size, (1, 2))
        self.stem = ConvStack(c.in_channels, (c.channels, c.channels), c.kernel_size, (1, 2))
        # not `code`: torch.export's GraphModule has an attribute of this name
        self.narrow = nn.Linear(c.channels * places, c.units)
        self.decoder = MLPDecoder(in_units=c.units, hidden=c.hidden, image_shape=c.image_shape)

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"decode", "reconstruct"})

    def encode(self, images: Tensor, *, coupling: bool = False) -> Output:
        self.check_images(images)
        features = self.stem(images)
        code = self.narrow(features.flatten(1))
        return Output(features=features, layers=(Capsules(code[:, None]),))

    def decode(self, poses: Tensor, labels: Tensor | None = None) -> Tensor:
        assert self.decoder is not None
        return self.decoder(poses.flatten(1))


AVG: dict[str, Any] = {"strides": (1, 2), "kernel_size": 9, "pool": "average", "hidden": ()}
COLOR: dict[str, Any] = {"in_channels": 3, "image_size": 32}
MULTI: dict[str, Any] = {"in_channels": 1, "image_size": 36}
LISTED = ("autoencoder", "convnet-avg", "convnet-avg-small", "convnet-modern", "resnet18")
"""Baselines that `list_models()` shows; the others are rows of tables."""
for name, model, config, summary in (
    ("convnet-fc", ConvNet, ConvNetConfig(), "LeNet-like ConvNet, baseline of CapsNet"),
    ("convnet-fc-lk", ConvNet, ConvNetConfig(kernel_size=9, hidden=(160, 96)),
     "ConvNet-FC with large kernels and small linear layers, a baseline"),
    ("convnet-avg", ConvNet, ConvNetConfig(channels=(256, 256), **AVG),
     "CapsNet's convolutions with global average pooling, a baseline"),
    ("convnet-avg-small", ConvNet, ConvNetConfig(channels=(32, 128), **AVG),
     "small ConvNet-Avg for CPUs, a baseline"),
    ("convnet-r", ConvNetR, ConvNetRConfig(), "ConvNet with plain reconstruction, a baseline"),
    ("convnet-cr", ConvNetR, ConvNetRConfig(conditional=True),
     "ConvNet with conditional reconstruction, a baseline"),
    ("convnet-cr-sf", ConvNetR, ConvNetRConfig(conditional=True, squash=True),
     "ConvNet-CR with squashing, a baseline"),
    ("convnet-modern", ConvNetModern, ConvNetModernConfig(),
     "modern ConvNet (3x3 convolutions, BatchNorm, GELU), a baseline"),
    ("cnn", CNN, CNNConfig(**COLOR), "three-layer CNN for CIFAR, a baseline"),
    ("cnn-multi", CNN, CNNConfig(**MULTI, kind="multi"),
     "three-layer CNN for two digits, a baseline"),
    ("cnn-multi-fc", CNN, CNNConfig(**MULTI, kind="multi-fc"),
     "three-layer CNN for two digits without pooling, a baseline"),
    ("resnet18", CNN, CNNConfig(**COLOR, kind="resnet18", channels=64),
     "ResNet-18 for small images, a baseline"),
    ("resnet20", CNN, CNNConfig(**COLOR, kind="resnet20", channels=16),
     "ResNet-20 for small images, a baseline"),
    ("mobilenetv3", TimmNet, TimmConfig(**COLOR), "MobileNetV3-Small of timm, a baseline"),
    ("resnet18-timm", TimmNet, TimmConfig(in_channels=3, image_size=64, network="resnet18"),
     "ResNet-18 of timm, a baseline"),
    ("vit-small", TimmNet, TimmConfig(**COLOR, network="vit_small_patch16_224", patch_size=4),
     "ViT-S of timm with small patches, a baseline"),
    ("autoencoder", Autoencoder, AutoencoderConfig(), "convolutional autoencoder, a baseline"),
):  # fmt: skip
    register(name, model, config, summary, listed=name in LISTED)
