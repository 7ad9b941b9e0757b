"""Convolutions before the capsules."""

from torch import Tensor, nn
from torch.nn import functional as F


def conv_out(size: int, kernel_size: int, stride: int = 1) -> int:
    """Side of a map after an unpadded convolution."""
    return (size - kernel_size) // stride + 1


def max_pool(features: Tensor) -> Tensor:
    """The maximum over positions. features [B,C,H,W] -> [B,C]

    By index: the gradient of `amax` compares values, and a compiled graph that computes them again
    in another precision finds no maximum and divides by zero.
    """
    return features.flatten(2).max(-1).values


def by_windows(images: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """An unpadded convolution as one product with the images' windows.

    images [B,C,H,W], weight [O,C,K,K] -> [B,O,H',W'], channels last
    """
    side = weight.shape[-1]
    windows = images.unfold(2, side, stride).unfold(3, side, stride)  # [B,C,H',W',K,K]
    rows = windows.permute(0, 2, 3, 1, 4, 5).flatten(3)
    spare = 0, -rows.shape[-1] % 8  # tensor cores read 16 bytes at a time
    found = F.linear(F.pad(rows, spare), F.pad(weight.flatten(1), spare), bias)
    return found.permute(0, 3, 1, 2)


class ImageConv(nn.Conv2d):
    """An unpadded convolution of images, whose few channels leave cuDNN's tensor cores idle: on a
    GPU it goes by windows where these take at most half of what it makes.
    """

    def forward(self, input: Tensor) -> Tensor:
        small = 2 * self.weight[0].numel() <= self.out_channels
        if small and input.device.type == "cuda":
            return by_windows(input, self.weight, self.bias, self.stride[0])
        return super().forward(input)


class ConvStack(nn.Sequential):
    """Unpadded convolutions, each followed by a ReLU. images [B,C,H,W] -> features [B,C',H',W']"""

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
"""Those of ConvNet-Modern: a quarter of the image's side is left."""


class NormStack(nn.Sequential):
    """3x3 convolutions, each with BatchNorm and GELU. images [B,C,H,W] -> features [B,C',H',W']"""

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
