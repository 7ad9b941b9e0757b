"""Masked capsule autoencoder (Everett, Zhong, Leontidis 2024): pretraining and finetuning.

    patches -> (half of them removed) -> ConvMixer or ViT -> primary capsules, poses and activations
    -> self-routing inside each position, three layers of 16 capsules
    pretrain: a learned capsule where patches were removed -> fully connected capsules over all
              positions -> linear to pixels; the loss is on removed patches
    finetune: class capsules inside each position, their activations averaged over positions

There is no public code of the paper; choices where its text is silent are in docs/mcae.md. Removed
patches are not in the sequence at all; a test holds that their pixels change nothing but the loss.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.functional import draws
from torchcaps.layers import Normalise, PointwiseCaps, Routing
from torchcaps.layers.classes import ClassCaps
from torchcaps.layers.patch_decoder import CapsuleDecoder, ConvPatchDecoder, MLPPatchDecoder
from torchcaps.layers.patches import (
    Attention,
    ConvMixer,
    TokenNorm,
    ViT,
    from_patches,
    keep,
    put_back,
    timm_blocks,
    to_patches,
)
from torchcaps.models.base import CapsuleModel, ModelConfig, Output
from torchcaps.models.registry import register


@dataclass(frozen=True)
class MCAEConfig(ModelConfig):
    family: ClassVar[str] = "mcae"
    stage: Literal["pretrain", "finetune"] = "finetune"
    patch_size: int = 4
    mask_ratio: float = 0.5
    """Share of patches that pretraining removes."""
    backbone: str = "convmixer"
    """convmixer, vit, or timm:NAME of one of timm's vision transformers."""
    width: int = 256
    """Of the ConvMixer's tokens; the ViT's are capsules x pose."""
    depth: int = 4
    kernel_size: int = 5
    num_caps: int = 16
    dim: int = 16
    num_layers: int = 3
    """Of the capsule encoder."""
    routing: Routing = "self"
    route_std: float = 0.0
    """Of self-routing's route weights at the start; 0: zero as in its authors' code, 0.01 in the
    class layer."""
    residual: bool = False
    """Add what a layer of the encoder makes to the poses below it."""
    decoder: Literal["capsules", "mlp", "conv"] = "capsules"
    decoder_depth: int = 1
    decoder_dim: int = 32
    decoder_shared: bool = False
    """Transforms of the decoder by capsule type alone, with an embedding of places."""
    decoder_width: float = 1.0
    """Of the MLP decoder, as a share of the paper's."""


class MCAE(CapsuleModel):
    def __init__(self, config: MCAEConfig):
        super().__init__()
        self.config = self.options = c = config
        self.side, left = divmod(c.image_size, c.patch_size)
        if left or not self.side:
            raise TorchcapsError(
                f"Images of {c.image_size} pixels do not split into patches of {c.patch_size}."
            )
        self.length = self.side**2
        self.visible = self.length - round(c.mask_ratio * self.length)
        if not 0 < self.visible < self.length:
            raise TorchcapsError(f"mask_ratio={c.mask_ratio} leaves no patch, or hides none.")
        pixels, size = c.in_channels * c.patch_size**2, c.num_caps * c.dim
        self.normalise = Normalise(c.in_channels)
        self.embed_norm: nn.Module = nn.Identity()
        if c.backbone == "convmixer":
            width = c.width
            self.embed_norm = nn.Sequential(nn.GELU(), TokenNorm(width))
            self.backbone: nn.Module = ConvMixer(width, c.depth, self.side, c.kernel_size)
        elif c.backbone == "vit":
            width = size
            self.backbone = ViT(width, self.side, (Attention(width) for _ in range(c.depth)))
        elif c.backbone.startswith("timm:"):
            width, blocks = timm_blocks(c.backbone.removeprefix("timm:"))
            self.backbone = ViT(width, self.side, blocks)
        else:
            raise TorchcapsError(f"No backbone {c.backbone!r}: convmixer, vit or timm:NAME.")
        self.embed = nn.Linear(pixels, width)
        self.primary = nn.Sequential(nn.Linear(width, size, bias=False), TokenNorm(size))
        self.active = nn.Sequential(nn.Linear(width, c.num_caps, bias=False), TokenNorm(c.num_caps))
        self.layers = nn.ModuleList(
            PointwiseCaps(
                c.num_caps, c.dim, c.num_caps, c.dim,
                routing=c.routing, matrix=c.routing in ("em", "vb"), route_std=c.route_std,
            )
            for _ in range(c.num_layers)
        )  # fmt: skip
        self.norms = nn.ModuleList(TokenNorm(size) for _ in range(c.num_layers))
        bare = c.routing in ("dynamic", "uniform", "inverted")
        self.claims = nn.ModuleList(nn.Linear(c.dim, 1) for _ in range(c.num_layers if bare else 0))
        self.decoder = None
        if c.stage == "pretrain":
            self.hidden_pose = nn.Parameter(torch.randn(c.dim) * 0.02)
            # as loud as the others: those of self-routing sum to one over the capsules
            loudness = -math.log(c.num_caps - 1) if c.routing == "self" and c.num_caps > 1 else 0.0
            self.hidden_active = nn.Parameter(torch.tensor(loudness))
            self.decoder = self._decoder(pixels)
        else:
            self.classes = ClassCaps(c.num_caps, c.dim, c.num_classes, c.route_std or 0.01)

    def _decoder(self, pixels: int) -> nn.Module:
        c = self.options
        sizes = (c.num_caps, c.dim, pixels)
        if c.decoder == "mlp":
            return MLPPatchDecoder(self.length, *sizes, width=c.decoder_width)
        if c.decoder == "conv":
            return ConvPatchDecoder(self.side, *sizes, depth=c.decoder_depth)
        return CapsuleDecoder(
            self.length, *sizes,
            depth=c.decoder_depth, dim=c.decoder_dim, shared=c.decoder_shared,
        )  # fmt: skip

    def rows(self, images: Tensor) -> Tensor:
        """Which patches stay [B,V], in order: at random, or in evaluation always the same."""
        batch = len(images)
        if self.training:
            noise = torch.rand(batch, self.length, device=images.device)
        else:
            noise = draws(0, torch.arange(batch, device=images.device), self.length)
        return noise.argsort(1)[:, : self.visible].sort(1).values

    def encode(self, images: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Capsules of the patches in `rows` (None: all). -> poses [B,V,I,D], activations [B,V,I]"""
        return self.capsules(self.tokens(images, rows))

    def tokens(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """images [B,C,H,W] -> what the backbone makes of the patches in `rows` [B,V,C']"""
        patches = keep(to_patches(self.normalise(images), self.options.patch_size), rows)
        return self.backbone(self.embed_norm(self.embed(patches)), rows)

    def capsules(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens [B,V,C'] -> poses [B,V,I,D], activations [B,V,I]"""
        c = self.options
        poses = self.primary(tokens).unflatten(2, (c.num_caps, c.dim))
        active = self.active(tokens).sigmoid()
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            made, found, _ = layer(poses, active)
            made = norm(made.flatten(2)).unflatten(2, (c.num_caps, c.dim))
            poses = poses + made if c.residual else made
            active = self.claims[number](poses).squeeze(-1).sigmoid() if found is None else found
        return poses, active

    def forward(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        *,
        coupling: bool = False,
        reconstruct: bool = True,
    ) -> Output:
        """Pretraining hides patches and draws them; `logits` are then the mean activation of each
        capsule, since there are no classes yet.
        """
        if self.options.stage == "finetune":
            tokens = self.tokens(images)
            poses, active = self.capsules(tokens)
            shares = self.classes(poses, active).mean(1)
            return Output(
                logits=shares.clamp_min(1e-8).log(),
                lengths=shares,
                features=tokens.mT.unflatten(2, (self.side, self.side)),
                capsules=poses.mean(1),
            )
        rows = self.rows(images) if reconstruct else None
        poses, active = self.encode(images, rows)
        scores = active.float().mean(1)
        if rows is None:
            return Output(logits=scores, capsules=poses.mean(1))
        hidden = torch.ones(len(images), self.length, dtype=torch.bool, device=images.device)
        hidden = hidden.scatter(1, rows, False)
        drawn = self.draw(poses, active, rows)
        return Output(logits=scores, capsules=poses.mean(1), reconstruction=drawn, hidden=hidden)

    def draw(self, poses: Tensor, active: Tensor, rows: Tensor) -> Tensor:
        """The learned capsule in place of every removed patch, then the decoder. -> [B,C,H,W]"""
        assert self.decoder is not None
        poses = put_back(poses, rows, self.length, self.hidden_pose)
        active = put_back(active, rows, self.length, self.hidden_active.sigmoid())
        return from_patches(self.decoder(poses, active), self.options.patch_size, self.side)


register("mcae", MCAE, MCAEConfig(), "masked capsule autoencoder, as a classifier")
register(
    "mcae-pretrain",
    MCAE,
    MCAEConfig(stage="pretrain"),
    "masked capsule autoencoder, with its decoder",
)
register("mcae-vit", MCAE, MCAEConfig(backbone="vit"), "masked capsule autoencoder on a ViT")
