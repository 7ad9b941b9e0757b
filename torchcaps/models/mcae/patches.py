"""Patches of an image as a sequence, and backbones for sequences with removed patches."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.functional import counter_uniform
from torchcaps.layers.stems import TokenNorm, timm_model


def to_patches(images: Tensor, size: int) -> Tensor:
    """Split images into patches, row by row. [B,C,H,W] -> [B,L,C*size*size]"""
    batch, channels, height, width = images.shape
    grid = images.reshape(batch, channels, height // size, size, width // size, size)
    return grid.permute(0, 2, 4, 1, 3, 5).reshape(
        batch, height // size * (width // size), channels * size * size
    )


def from_patches(patches: Tensor, size: int, side: int) -> Tensor:
    """Inverse of `to_patches` for square images. [B,L,C*size*size] -> [B,C,H,W]"""
    batch, _, pixels = patches.shape
    channels = pixels // size**2
    grid = patches.reshape(batch, side, side, channels, size, size)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, side * size, side * size)


def keep(sequence: Tensor, rows: Tensor | None) -> Tensor:
    """Select the rows [B,V] of a sequence [B,L,…]; None: all rows. -> [B,V,…]"""
    if rows is None:
        return sequence
    index = rows.reshape(*rows.shape, *[1] * (sequence.dim() - 2))
    return sequence.gather(1, index.expand(*rows.shape, *sequence.shape[2:]))


def put_back(kept: Tensor, rows: Tensor, length: int, filler: Tensor) -> Tensor:
    """Inverse of `keep`, with a filler of one row's shape in place of removed rows."""
    whole = filler.to(kept.dtype).expand(kept.shape[0], length, *kept.shape[2:])
    index = rows.reshape(*rows.shape, *[1] * (kept.dim() - 2))
    return whole.scatter(1, index.expand_as(kept), kept)


def visible_rows(
    batch: int, length: int, visible: int, device: torch.device, at_random: bool
) -> Tensor:
    """Sorted indices of the visible patches of each image [B,V]: random, or fixed per index."""
    if at_random:
        noise = torch.rand(batch, length, device=device)
    else:
        noise = counter_uniform(0, torch.arange(batch, device=device), length)
    return noise.argsort(1)[:, :visible].sort(1).values


class ConvMixer(nn.Module):
    """ConvMixer (Trockman & Kolter 2022) on the visible patches.

    tokens [B,V,C], their positions [B,V] or None (all) -> tokens [B,V,C]

    The depthwise convolution mixes patches, so it runs on the grid with removed patches set to
    zero, and its output there is dropped: removed patches are never read.
    """

    letters = "[B,L,C] -> [B,L,C]"

    def __init__(self, width: int, depth: int, side: int, kernel_size: int = 5):
        super().__init__()
        self.side = side
        self.spatial = nn.ModuleList(
            nn.Conv2d(width, width, kernel_size, padding="same", groups=width) for _ in range(depth)
        )
        self.channel = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(TokenNorm(width) for _ in range(2 * depth))

    def forward(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        for number, (spatial, channel) in enumerate(zip(self.spatial, self.channel, strict=True)):
            mixed = nn.functional.gelu(self._across(spatial, tokens, rows))
            tokens = tokens + self.norms[2 * number](mixed)
            tokens = self.norms[2 * number + 1](nn.functional.gelu(channel(tokens)))
        return tokens

    def _across(self, conv: nn.Module, tokens: Tensor, rows: Tensor | None) -> Tensor:
        length = self.side * self.side
        whole = tokens
        if rows is not None:
            whole = put_back(tokens, rows, length, tokens.new_zeros(tokens.shape[-1]))
        grid = whole.mT.unflatten(2, (self.side, self.side))
        return keep(conv(grid).flatten(2).mT, rows)


class Attention(nn.Module):
    """Pre-norm block of a vision transformer: attention and an MLP.

    The MLP is as wide as the tokens, not four times as wide, which gives the number of operations
    in the paper of the masked capsule autoencoder.
    """

    letters = "[B,L,C] -> [B,L,C]"

    def __init__(self, width: int, heads: int = 4):
        super().__init__()
        if width % heads:
            raise TorchcapsError(f"width={width} must be a multiple of heads={heads}.")
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        qkv = self.qkv(self.before(tokens)).unflatten(2, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        tokens = tokens + self.out(attended.transpose(1, 2).flatten(2))
        return tokens + self.mlp(self.between(tokens))


class ViT(nn.Module):
    """Transformer blocks on the visible patches; removed patches are not in the sequence."""

    letters = "[B,L,C] -> [B,L,C]"

    def __init__(self, width: int, side: int, blocks: Iterable[nn.Module]):
        super().__init__()
        self.places = nn.Parameter(torch.randn(side * side, width) * 0.02)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
        tokens = tokens + keep(self.places.expand(tokens.shape[0], -1, -1), rows)
        for block in self.blocks:
            tokens = block(tokens)
        return self.norm(tokens)


def timm_blocks(name: str) -> tuple[int, Iterable[nn.Module]]:
    """Width and randomly initialized blocks of a vision transformer of timm."""
    model = timm_model(name, num_classes=0)
    blocks = getattr(model, "blocks", None)
    # rotary embeddings and windows need more than the visible tokens
    if not isinstance(blocks, nn.Sequential) or getattr(model, "rope", None) is not None:
        raise TorchcapsError(
            f"timm:{name} is not a plain vision transformer. Try timm:vit_small_patch16_224."
        )
    return model.embed_dim, blocks
