"""Decoders from the capsules of all positions to the pixels of every patch."""

import torch
from torch import Tensor, nn

from torchcaps.layers.capsules import DenseCaps


class CapsuleDecoder(nn.Module):
    """Fully connected capsules: all capsules of all positions route to one parent per patch.

    poses [B,L,I,D], activations [B,L,I] -> pixels [B,L,P]

    shared: use the same transforms at all positions, and add a position embedding to the poses
    """

    letters = "[B,L,I,D] -> [B,L,P]"

    def __init__(
        self, length: int, in_caps: int, in_dim: int, pixels: int, *,
        depth: int = 1, dim: int = 32, shared: bool = False,
    ):  # fmt: skip
        super().__init__()
        self.places = nn.Parameter(torch.randn(length, 1, in_dim) * 0.02) if shared else None
        layers: list[nn.Module] = []
        for number in range(depth):
            children, size = (length * in_caps, in_dim) if number == 0 else (length, dim)
            types: bool | int = in_caps if shared and number == 0 else False
            layer = DenseCaps(
                in_caps=children, in_dim=size, out_caps=length, out_dim=dim, shared=types,
                routing="self",
            )  # fmt: skip
            layers.append(layer)
        self.layers = nn.ModuleList(layers)
        # a mean over this many children is small; the default eps would dominate it
        self.norms = nn.ModuleList(nn.LayerNorm(dim, eps=1e-12) for _ in range(depth))
        self.head = nn.Linear(dim, pixels)

    def forward(self, poses: Tensor, activations: Tensor) -> Tensor:
        if self.places is not None:
            poses = poses + self.places
        poses, activations = poses.flatten(1, 2), activations.flatten(1)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            poses, activations, _ = layer(poses, activations)
            poses = norm(poses)
        return self.head(poses)


class MLPPatchDecoder(nn.Module):
    """Three linear layers over all positions at once. poses [B,L,I,D] -> pixels [B,L,P]

    The paper's widths are the input size, twice the input size, and the pixels; `width` scales the
    first two.
    """

    letters = "[B,L,I,D] -> [B,L,P]"

    def __init__(self, length: int, in_caps: int, in_dim: int, pixels: int, width: float = 1.0):
        super().__init__()
        size = length * in_caps * in_dim
        first, second = (max(1, round(width * s)) for s in (size, 2 * size))
        self.length = length
        self.body = nn.Sequential(
            nn.Linear(size, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(),
            nn.Linear(second, length * pixels),
        )  # fmt: skip

    def forward(self, poses: Tensor, activations: Tensor) -> Tensor:
        weighted = poses * activations[..., None]
        return self.body(weighted.flatten(1)).unflatten(1, (self.length, -1))


class ConvNeXtBlock(nn.Module):
    """Depthwise 7x7, LayerNorm, expansion, GELU, global response normalization, projection."""

    letters = "[B,H,W,C] -> [B,H,W,C]"

    def __init__(self, width: int):
        super().__init__()
        self.spatial = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gain, self.bias = (nn.Parameter(torch.zeros(4 * width)) for _ in range(2))

    def forward(self, grid: Tensor) -> Tensor:
        x = self.spatial(grid.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        x = nn.functional.gelu(self.up(self.norm(x)))
        size = x.float().square().sum((1, 2), keepdim=True).add(1e-12).sqrt()
        x = self.gain * (x * (size / (size.mean(-1, keepdim=True) + 1e-6))) + self.bias + x
        return grid + self.down(x)


class ConvPatchDecoder(nn.Module):
    """ConvNeXtV2 blocks on the grid of positions. poses [B,L,I,D] -> pixels [B,L,P]"""

    letters = "[B,L,I,D] -> [B,L,P]"

    def __init__(self, side: int, in_caps: int, in_dim: int, pixels: int, depth: int = 1):
        super().__init__()
        self.side = side
        width = in_caps * in_dim
        self.blocks = nn.Sequential(*(ConvNeXtBlock(width) for _ in range(depth)))
        self.head = nn.Linear(width, pixels)

    def forward(self, poses: Tensor, activations: Tensor) -> Tensor:
        weighted = (poses * activations[..., None]).flatten(2)
        grid = self.blocks(weighted.unflatten(1, (self.side, self.side)))
        return self.head(grid.flatten(1, 2))
