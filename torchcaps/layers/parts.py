"""Part capsules from an image: a small ConvNet with attention pooling for each part.

A learned position embedding is added to the features, because pooling removes positions (as in the
stacked capsule autoencoder's code).
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from torchcaps.layers.stems import conv_out


def geometric(
    numbers: Tensor, scale: float, *, rotate: Literal["first", "last"] = "last"
) -> Tensor:
    """Convert six numbers to an affine map by scales, angle, shear and shift, without reflections.

    numbers [...,6] -> [...,2,3]; scale: size of a part if all numbers are zero; rotate: "last"
    scales and shears along the axes of the part, "first" along those of the image
    """
    scale_x, scale_y, angle, shear, x, y = numbers.unbind(-1)
    offset = math.log(scale / (1 - scale)) if scale < 1 else 4.0
    scale_x, scale_y = (scale_x + offset).sigmoid() + 0.01, (scale_y + offset).sigmoid() + 0.01
    shear, x, y = (5 * shear).tanh(), (5 * x).tanh(), (5 * y).tanh()
    cos, sin = (2 * math.pi * angle).cos(), (2 * math.pi * angle).sin()
    if rotate == "first":  # shear @ scales @ rotation
        rows = [
            scale_x * cos + shear * scale_y * sin, shear * scale_y * cos - scale_x * sin, x,
            scale_y * sin, scale_y * cos, y,
        ]  # fmt: skip
        return torch.stack(rows, -1).unflatten(-1, (2, 3))
    rows = [
        scale_x * cos, scale_y * (shear * cos - sin), x,
        scale_x * sin, scale_y * (shear * sin + cos), y,
    ]  # fmt: skip
    return torch.stack(rows, -1).unflatten(-1, (2, 3))


class PartEncoder(nn.Module):
    """Encode an image to N numbers for each part. images [B,C,H,W] -> [B,I,N]"""

    letters = "[B,C,H,W] -> [B,I,N]"
    strides = (2, 2, 1, 1)

    def __init__(self, in_channels: int, image_size: int, num_parts: int, numbers: int,
                 channels: int = 32, padding: int = 1,
                 activation: type[nn.Module] = nn.ELU):  # fmt: skip
        super().__init__()
        widths = [in_channels, *[channels] * len(self.strides)]
        layers: list[nn.Module] = []
        for width, out, stride in zip(widths, widths[1:], self.strides, strict=False):
            layers += [nn.Conv2d(width, out, 3, stride, padding), activation()]
        self.stem = nn.Sequential(*layers)
        side = image_size
        for stride in self.strides:
            side = conv_out(side + 2 * padding, 3, stride)
        self.where = nn.Parameter(torch.zeros(channels, max(side, 0), max(side, 0)))
        self.num_parts, self.numbers = num_parts, numbers
        self.values = nn.Conv2d(channels, num_parts * numbers, 1)
        self.looks = nn.Conv2d(channels, num_parts, 1)
        nn.init.normal_(self.values.weight, std=0.02)
        nn.init.zeros_(self.values.bias)  # pyright: ignore[reportArgumentType]

    def forward(self, images: Tensor) -> Tensor:
        features = self.stem(images) + self.where
        attention = self.looks(features).flatten(2).softmax(-1)
        values = self.values(features).flatten(2).unflatten(1, (self.num_parts, self.numbers))
        return (values * attention[:, :, None]).sum(-1)


class PerCapsule(nn.Module):
    """A separate network of one hidden layer for each capsule. [B,J,D] -> [B,J,E]"""

    letters = "[B,J,D] -> [B,J,E]"

    def __init__(self, num_caps: int, dim: int, hidden: int, out: int, bias: bool = True):
        """bias: give the output layer a bias; the hidden layer always has one"""
        super().__init__()
        self.first = nn.Parameter(torch.randn(num_caps, dim, hidden) * dim**-0.5)
        self.first_bias = nn.Parameter(torch.zeros(num_caps, hidden))
        self.last = nn.Parameter(torch.randn(num_caps, hidden, out) * 0.1 * hidden**-0.5)
        self.last_bias = nn.Parameter(torch.zeros(num_caps, out)) if bias else None

    def forward(self, vectors: Tensor) -> Tensor:
        hidden = torch.einsum("bjd,jdh->bjh", vectors, self.first) + self.first_bias
        outputs = torch.einsum("bjh,jhe->bje", hidden.relu(), self.last)
        return outputs if self.last_bias is None else outputs + self.last_bias


class FromOne(nn.Module):
    """All capsules from one vector, by one network with a hidden layer for each output group.

    [B,1,D] -> [B,J,E], E the sum of `sizes`
    """

    letters = "[B,1,D] -> [B,J,E]"

    def __init__(self, num_caps: int, dim: int, hidden: int, sizes: tuple[int, ...]):
        super().__init__()
        self.num_caps = num_caps
        self.kinds = nn.ModuleList()
        for size in sizes:
            last = nn.Linear(hidden, num_caps * size)
            nn.init.normal_(last.weight, std=0.1 * hidden**-0.5)
            nn.init.zeros_(last.bias)
            self.kinds.append(nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), last))

    def forward(self, vectors: Tensor) -> Tensor:
        outputs = [net(vectors[:, 0]).unflatten(-1, (self.num_caps, -1)) for net in self.kinds]
        return torch.cat(outputs, -1)
