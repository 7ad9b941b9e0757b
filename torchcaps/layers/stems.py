"""Stems: convolutions before the capsules."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.errors import TorchcapsError, UsageError, nearest, require


def conv_out(size: int, kernel_size: int, stride: int = 1) -> int:
    """Side of a map after an unpadded convolution."""
    return (size - kernel_size) // stride + 1


def max_pool(features: Tensor) -> Tensor:
    """Maximum over positions. features [B,C,H,W] -> [B,C]

    `max` instead of `amax`: the gradient of `amax` compares values, and a compiled graph that
    recomputes them in another precision finds no maximum and divides by zero.
    """
    return features.flatten(2).max(-1).values


def by_windows(images: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """Unpadded convolution as one matrix product with the images' windows.

    images [B,C,H,W], weight [O,C,K,K] -> [B,O,H',W'], channels last
    """
    side = weight.shape[-1]
    windows = images.unfold(2, side, stride).unfold(3, side, stride)  # [B,C,H',W',K,K]
    rows = windows.permute(0, 2, 3, 1, 4, 5).flatten(3)
    padding = 0, -rows.shape[-1] % 8  # tensor cores read 16 bytes at a time
    maps = F.linear(F.pad(rows, padding), F.pad(weight.flatten(1), padding), bias)
    return maps.permute(0, 3, 1, 2)


class ImageConv(nn.Conv2d):
    """Unpadded convolution of images. Their few channels leave cuDNN's tensor cores idle, so on a
    GPU it runs as `by_windows` if a window has at most half as many entries as the output channels.
    """

    def forward(self, input: Tensor) -> Tensor:
        small = 2 * self.weight[0].numel() <= self.out_channels
        if small and input.device.type == "cuda":
            return by_windows(input, self.weight, self.bias, self.stride[0])
        return super().forward(input)


class ConvStack(nn.Sequential):
    """Unpadded convolutions, each followed by a ReLU. images [B,C,H,W] -> features [B,C',H',W']

    >>> ConvStack(1, (8, 16), 5, (1, 2))(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 16, 10, 10])
    """

    letters = "[B,C,H,W] -> [B,C,H,W]"

    def __init__(
        self,
        in_channels: int,
        channels: tuple[int, ...],
        kernel_size: int,
        strides: tuple[int, ...],
    ):
        modules: list[nn.Module] = []
        for out_channels, stride in zip(channels, strides, strict=True):
            kind = nn.Conv2d if modules else ImageConv
            modules += [kind(in_channels, out_channels, kernel_size, stride), nn.ReLU()]
            in_channels = out_channels
        super().__init__(*modules)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input)


MODERN_STRIDES = (1, 1, 2, 1, 2, 1, 1)
"""Strides of ConvNet-Modern, which reduce the image's side to a quarter."""


class NormStack(nn.Sequential):
    """3x3 convolutions, each with BatchNorm and GELU. images [B,C,H,W] -> features [B,C',H',W']

    >>> NormStack(1, (8, 16), (1, 2))(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 16, 14, 14])
    """

    letters = "[B,C,H,W] -> [B,C,H,W]"

    def __init__(self, in_channels: int, channels: tuple[int, ...], strides: tuple[int, ...]):
        modules: list[nn.Module] = []
        for out_channels, stride in zip(channels, strides, strict=True):
            conv = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
            modules += [conv, nn.BatchNorm2d(out_channels), nn.GELU()]
            in_channels = out_channels
        super().__init__(*modules)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input)


CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Normalize(nn.Module):
    """Normalize color images by the mean and std of CIFAR-10, gray images by `gray` (mean, std).

    >>> Normalize(1, gray=(0.5, 0.5))(torch.ones(1, 1, 1, 1)).item()
    1.0
    """

    letters = "[B,C,H,W] -> [B,C,H,W]"
    mean: Tensor
    std: Tensor

    def __init__(self, in_channels: int, gray: tuple[float, float] = (0.0, 1.0)):
        super().__init__()
        color = in_channels == 3
        for name, values, value in zip(("mean", "std"), (CIFAR_MEAN, CIFAR_STD), gray, strict=True):
            tensor = torch.tensor(values if color else (value,) * in_channels)[:, None, None]
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std

    def inverse(self, images: Tensor) -> Tensor:
        """Reverse the normalization."""
        return images * self.std + self.mean


class TokenNorm(nn.BatchNorm1d):
    """BatchNorm over all positions of the sequence. tokens [B,V,C] -> [B,V,C]"""

    letters = "[B,L,C] -> [B,L,C]"

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.flatten(0, -2)).unflatten(0, input.shape[:-1])


def conv3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)


class ResidualBlock(nn.Module):
    """Residual block of two 3x3 convolutions with BatchNorm (He et al. 2016)."""

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
    """A 3x3 convolution, then stages of residual blocks; all but the first have stride 2.

    images [B,C,H,W] -> features [B,C',H',W']

    >>> ResNetStack(3, ((8, 1), (16, 1)))(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 16, 16, 16])
    """

    letters = "[B,C,H,W] -> [B,C,H,W]"

    def __init__(self, in_channels: int, stages: tuple[tuple[int, int], ...]):
        """stages: (channels, blocks) per stage"""
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


def timm_model(name: str, **options: Any) -> Any:
    """A network of timm with random weights.

    Only names in timm's own registry: other names may fetch or read files.
    """
    timm = require("timm", "timm")
    if name not in timm.list_models():
        raise UsageError(f"timm has no network {name!r}. {nearest(name, timm.list_models(), 0)}")
    try:
        return timm.create_model(name, **options)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise TorchcapsError(f"timm cannot create {name!r}: {error}") from None


class TimmStem(nn.Module):
    """Features of a timm model at one stage (ResNet: stage 0 has a half, 1 a quarter of the side).

    images [B,C,H,W] -> features [B,C',H',W']
    """

    letters = "[B,C,H,W] -> [B,C,H,W]"

    def __init__(self, name: str, in_channels: int, stage: int = 1):
        super().__init__()
        options = {"features_only": True, "out_indices": (stage,), "in_chans": in_channels}
        self.body = timm_model(name, **options)
        self.out_channels = self.body.feature_info.channels()[0]
        self.reduction = self.body.feature_info.reduction()[0]

    def out_side(self, side: int) -> int:
        return -(-side // self.reduction)

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images)[0]


Backbone = ConvStem | ResNetStack | TimmStem


def make_backbone(name: str, in_channels: int, channels: int = 128) -> Backbone:
    """Make a backbone: simple (of `channels`), resnet, resnet-wide, timm:NAME, timm:NAME@STAGE.

    >>> make_backbone("simple", 3, 16)(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 16, 16, 16])
    """
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
        f"There is no backbone {name!r}. Give simple, resnet, resnet-wide or timm:NAME."
    )
