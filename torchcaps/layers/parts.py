"""From an image to parts: a small ConvNet whose maps each part pools with attention of its own.

A learned map that is added to the features tells where a position is: without it a pooled pose
could not know its place (as in the stacked capsule autoencoder's code).
"""

import math

import torch
from torch import Tensor, nn

from torchcaps.layers.stem import conv_out


def geometric(numbers: Tensor, scale: float) -> Tensor:
    """Six numbers as scales, angle, shear and shift, which never turn a part inside out.

    numbers [...,6] -> [...,2,3]; scale: of a part where all numbers are zero
    """
    wide, high, turn, shear, x, y = numbers.unbind(-1)
    first = math.log(scale / (1 - scale)) if scale < 1 else 4.0
    wide, high = (wide + first).sigmoid() + 0.01, (high + first).sigmoid() + 0.01
    shear, x, y = (5 * shear).tanh(), (5 * x).tanh(), (5 * y).tanh()
    cos, sin = (2 * math.pi * turn).cos(), (2 * math.pi * turn).sin()
    rows = [wide * cos, high * (shear * cos - sin), x, wide * sin, high * (shear * sin + cos), y]
    return torch.stack(rows, -1).unflatten(-1, (2, 3))


class PartEncoder(nn.Module):
    """images [B,C,H,W] -> numbers of each part [B,I,N]"""

    letters = "[B,C,H,W] -> [B,I,N]"
    strides = (2, 2, 1, 1)

    def __init__(self, in_channels: int, image_size: int, num_parts: int, numbers: int,
                 channels: int = 32, padding: int = 1,
                 activation: type[nn.Module] = nn.ELU):  # fmt: skip
        super().__init__()
        widths = [in_channels, *[channels] * len(self.strides)]
        layers: list[nn.Module] = []
        for wide, out, stride in zip(widths, widths[1:], self.strides, strict=False):
            layers += [nn.Conv2d(wide, out, 3, stride, padding), activation()]
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
        looks = self.looks(features).flatten(2).softmax(-1)
        values = self.values(features).flatten(2).unflatten(1, (self.num_parts, self.numbers))
        return (values * looks[:, :, None]).sum(-1)


class PerCapsule(nn.Module):
    """A network of one hidden layer for each capsule, none shared. [B,J,D] -> [B,J,E]"""

    letters = "[B,J,D] -> [B,J,E]"

    def __init__(self, num_caps: int, dim: int, hidden: int, out: int, bias: bool = True):
        """bias: whether what comes out has a bias; what is hidden has one"""
        super().__init__()
        self.first = nn.Parameter(torch.randn(num_caps, dim, hidden) * dim**-0.5)
        self.first_bias = nn.Parameter(torch.zeros(num_caps, hidden))
        self.last = nn.Parameter(torch.randn(num_caps, hidden, out) * 0.1 * hidden**-0.5)
        self.last_bias = nn.Parameter(torch.zeros(num_caps, out)) if bias else None

    def forward(self, vectors: Tensor) -> Tensor:
        hidden = torch.einsum("bjd,jdh->bjh", vectors, self.first) + self.first_bias
        found = torch.einsum("bjh,jhe->bje", hidden.relu(), self.last)
        return found if self.last_bias is None else found + self.last_bias


class FromOne(nn.Module):
    """All capsules from one vector: a network of one hidden layer for each kind of number.

    [B,1,D] -> [B,J,E], E the sum of the kinds' sizes
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
        found = [kind(vectors[:, 0]).unflatten(-1, (self.num_caps, -1)) for kind in self.kinds]
        return torch.cat(found, -1)
