"""Convolutions before the capsules."""

from torch import Tensor, nn


def conv_out(size: int, kernel_size: int, stride: int = 1) -> int:
    """Side of a map after an unpadded convolution."""
    return (size - kernel_size) // stride + 1


def max_pool(features: Tensor) -> Tensor:
    """The maximum over positions. features [B,C,H,W] -> [B,C]

    By index: the gradient of `amax` compares values, and a compiled graph that computes them again
    in another precision finds no maximum and divides by zero.
    """
    return features.flatten(2).max(-1).values


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
            modules += [nn.Conv2d(in_channels, out_channels, kernel_size, stride), nn.ReLU()]
            in_channels = out_channels
        super().__init__(*modules)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input)


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
