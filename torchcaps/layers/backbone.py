"""Feature extractors before the capsules: one convolution, residual blocks, or any of timm's.

Each says what it returns in `out_channels` and, for an image of a given side, `out_side`.
"""

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError, known_to_timm, require

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Normalise(nn.Module):
    """Colour images by the mean and deviation of CIFAR-10's pixels; grey ones stay as they are,
    unless `grey` has a mean and a deviation for them.
    """

    letters = "[B,C,H,W] -> [B,C,H,W]"
    mean: Tensor
    std: Tensor

    def __init__(self, in_channels: int, grey: tuple[float, float] = (0.0, 1.0)):
        super().__init__()
        colour = in_channels == 3
        for name, values, value in zip(("mean", "std"), (CIFAR_MEAN, CIFAR_STD), grey, strict=True):
            plain = (value,) * in_channels
            tensor = torch.tensor(values if colour else plain)[:, None, None]
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std

    def undone(self, images: Tensor) -> Tensor:
        return images * self.std + self.mean


def conv3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm beside the input (He et al. 2016)."""

    letters = "[B,C,H,W] -> [B,C,H,W]"

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1):
        super().__init__()
        self.body = nn.Sequential(
            conv3(in_channels, out_channels, stride), nn.BatchNorm2d(out_channels), nn.ReLU(),
            conv3(out_channels, out_channels), nn.BatchNorm2d(out_channels),
        )  # fmt: skip
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.skip = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

    def forward(self, features: Tensor) -> Tensor:
        return (self.body(features) + self.skip(features)).relu()


class ResNetStack(nn.Sequential):
    """A 3x3 convolution, then stages of residual blocks, each but the first with stride 2.

    images [B,C,H,W] -> features [B,C',H',W']
    """

    letters = "[B,C,H,W] -> [B,C,H,W]"

    def __init__(self, in_channels: int, stages: tuple[tuple[int, int], ...]):
        """stages: (channels, blocks) of each."""
        width = stages[0][0]
        modules: list[nn.Module] = [conv3(in_channels, width), nn.BatchNorm2d(width), nn.ReLU()]
        for number, (channels, blocks) in enumerate(stages):
            for block in range(blocks):
                stride = 2 if number and not block else 1
                modules.append(ResidualBlock(width, channels, stride))
                width = channels
        super().__init__(*modules)
        self.out_channels, self.stride = width, 2 ** (len(stages) - 1)

    def out_side(self, side: int) -> int:
        return -(-side // self.stride)


class ConvStem(nn.Sequential):
    """One convolution with stride 2 and padding 1. images [B,C,H,W] -> features [B,C',H/2,W/2]"""

    letters = "[B,C,H,W] -> [B,C,H,W]"

    def __init__(self, in_channels: int, channels: int, kernel_size: int = 3, norm: bool = False):
        conv = nn.Conv2d(in_channels, channels, kernel_size, 2, 1)
        super().__init__(conv, *([nn.BatchNorm2d(channels)] if norm else []), nn.ReLU())
        self.out_channels, self.kernel_size = channels, kernel_size

    def out_side(self, side: int) -> int:
        return (side + 2 - self.kernel_size) // 2 + 1


class TimmStem(nn.Module):
    """Features of any of timm's models at one of its stages (of a ResNet: 0 halves the image, 1
    quarters it). images [B,C,H,W] -> features [B,C',H',W']
    """

    letters = "[B,C,H,W] -> [B,C,H,W]"

    def __init__(self, name: str, in_channels: int, stage: int = 1):
        super().__init__()
        timm = require("timm", "timm")
        known_to_timm(name)
        try:
            self.body = timm.create_model(
                name, features_only=True, out_indices=(stage,), in_chans=in_channels
            )
        except (RuntimeError, AttributeError) as error:
            raise TorchcapsError(f"timm has no features of {name!r}: {error}") from None
        self.out_channels = self.body.feature_info.channels()[0]
        self.reduction = self.body.feature_info.reduction()[0]

    def out_side(self, side: int) -> int:
        return -(-side // self.reduction)

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images)[0]


Backbone = ConvStem | ResNetStack | TimmStem


def make_backbone(name: str, in_channels: int, channels: int = 128) -> Backbone:
    """simple (of `channels`), resnet, resnet-wide, or timm:NAME or timm:NAME@STAGE"""
    if name == "simple":
        return ConvStem(in_channels, channels)
    if name == "resnet":
        return ResNetStack(in_channels, ((64, 3), (128, 4)))
    if name == "resnet-wide":
        return ResNetStack(in_channels, ((80, 3), (160, 4)))
    if name.startswith("timm:"):
        model, _, stage = name[5:].partition("@")
        return TimmStem(model, in_channels, int(stage or 1))
    raise TorchcapsError(
        f"There is no backbone {name!r}: simple, resnet, resnet-wide or timm:NAME."
    )
