"""Masked capsule autoencoder (Everett, Zhong, Leontidis 2024): pretraining and finetuning.

    patches -> (half of them removed) -> ConvMixer or ViT -> primary capsules, poses and activations
    -> self-routing at each position, three layers of 16 capsules
    pretrain: a learned capsule in place of removed patches -> fully connected capsules over all
              positions -> linear to pixels; the loss is on removed patches
    finetune: class capsules at each position, their activations averaged over positions

The paper has no public code; docs/lab-notes/mcae.md lists our choices where the paper leaves them
open. The task decides which patches are removed (`encode(images, rows)`). Removed patches are not
in the sequence, and a test checks that their pixels affect the loss only.
"""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.layers import Capsules, Normalize, PointwiseCaps, router_with
from torchcaps.layers.capsules import ClassCaps
from torchcaps.layers.stems import TokenNorm
from torchcaps.models.base import Model, ModelConfig, Output, described, register_output
from torchcaps.models.fields import Count, Depth, Kernel, Positive, Side, Weight
from torchcaps.models.mcae.decoder import CapsuleDecoder, ConvPatchDecoder, MLPPatchDecoder
from torchcaps.models.mcae.patches import (
    Attention,
    ConvMixer,
    ViT,
    from_patches,
    keep,
    put_back,
    timm_blocks,
    to_patches,
)
from torchcaps.models.registry import register

MOST_PATCHES = 64
"""Patches up to which the decoder is of capsules by default: their transforms grow with the square
of the number."""


@dataclass(frozen=True, kw_only=True)
class MCAEConfig(ModelConfig):
    family: ClassVar[str] = "mcae"
    stage: Literal["pretrain", "finetune"] = "finetune"
    """pretrain: with a decoder; finetune: with class capsules instead."""
    patch_size: Side = 4
    """Side of a patch in pixels."""
    backbone: str = "convmixer"
    """convmixer, vit, or timm:NAME for a vision transformer of timm."""
    width: Count = 256
    """Width of the ConvMixer's tokens; the ViT's width is capsules x pose."""
    depth: Depth = 4
    """Blocks of the backbone."""
    kernel_size: Kernel = 5
    """Side of the ConvMixer's depthwise kernels."""
    num_types: Count = field(default=16, metadata={"digest": "num_caps"})
    """Number of capsules at each position, in every layer."""
    pose_dim: Count = field(default=16, metadata={"digest": "dim"})
    """Entries of a pose."""
    num_layers: Depth = 3
    """Layers of the capsule encoder."""
    routing: str = "self"
    """Routing of the encoder: self, or any other registered routing."""
    route_std: Weight = 0.0
    """Standard deviation of the initial route weights of self-routing; 0: zero as in its authors'
    code, 0.01 in the class layer."""
    residual: bool = False
    """Add the poses of a layer to those of the layer below."""
    target: Literal["pixels", "standardized", "normalized"] = field(
        default="pixels",
        metadata={
            "digest_values": {"standardized": "standardised", "normalized": "normalised"},
        },
    )
    """Target of the decoder: pixels, pixels standardized by the dataset's mean and deviation, or
    pixels normalized by those of their patch."""
    decoder: Literal["auto", "capsules", "mlp", "conv"] = field(
        default="auto",
        metadata={"digest_default": "capsules", "digest_values": {"auto": "capsules"}},
    )
    """Decoder: the paper's capsules, an MLP over all positions, or convolutions, which alone do not
    grow with the image. auto: capsules, or convolutions for more than 64 patches, unless the
    transforms are shared."""
    decoder_depth: Depth = 1
    """Layers of the capsule decoder, or blocks of the convolutional decoder."""
    decoder_pose_dim: Count = field(default=32, metadata={"digest": "decoder_dim"})
    """Entries of a pose in the capsule decoder."""
    decoder_shared: bool = False
    """Share the decoder's transforms over positions and add a position embedding."""
    decoder_width: Positive = 1.0
    """Width of the MLP decoder relative to the paper's."""


@register_output
@dataclass
class MCAEOutput(Output):
    masked: Tensor | None = described("[B,L]", "mask of the removed patches")


class MCAE(Model):
    def __init__(self, config: MCAEConfig):
        super().__init__()
        self.config = self.options = c = config
        self.side, remainder = divmod(c.image_size, c.patch_size)
        if remainder or not self.side:
            raise TorchcapsError(
                f"Images of {c.image_size} pixels do not split into patches of {c.patch_size}. "
                "Give a patch_size that divides the image size."
            )
        self.length = self.side**2
        pixels, size = c.in_channels * c.patch_size**2, c.num_types * c.pose_dim
        self.normalize = Normalize(c.in_channels)
        self.standardize = Normalize(c.in_channels, gray=(0.1307, 0.3081))
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
            raise TorchcapsError(
                f"Unknown backbone {c.backbone!r}. Use convmixer, vit or timm:NAME."
            )
        self.embed = nn.Linear(pixels, width)
        self.primary = nn.Sequential(nn.Linear(width, size, bias=False), TokenNorm(size))
        self.active = nn.Sequential(
            nn.Linear(width, c.num_types, bias=False), TokenNorm(c.num_types)
        )
        router = router_with(c.routing, route_std=c.route_std)
        self.layers = nn.ModuleList(
            PointwiseCaps(
                in_caps=c.num_types,
                in_dim=c.pose_dim,
                out_caps=c.num_types,
                out_dim=c.pose_dim,
                routing=router,
                matrix=router.matrices,
            )
            for _ in range(c.num_layers)
        )
        self.norms = nn.ModuleList(TokenNorm(size) for _ in range(c.num_layers))
        count = 0 if router.activations else c.num_layers
        self.claims = nn.ModuleList(nn.Linear(c.pose_dim, 1) for _ in range(count))
        if c.stage == "pretrain":
            self.masked_pose = nn.Parameter(torch.randn(c.pose_dim) * 0.02)
            # same scale as the others: activations of self-routing sum to one over the capsules
            logit = -math.log(c.num_types - 1) if c.routing == "self" and c.num_types > 1 else 0.0
            self.masked_active = nn.Parameter(torch.tensor(logit))
            self.decoder = self._decoder(pixels)
        else:
            self.classes = ClassCaps(
                in_caps=c.num_types,
                in_dim=c.pose_dim,
                num_classes=c.num_classes,
                route_std=c.route_std or 0.01,
            )

    def _decoder(self, pixels: int) -> nn.Module:
        c = self.options
        sizes = (c.num_types, c.pose_dim, pixels)
        few = self.length <= MOST_PATCHES or c.decoder_shared
        decoder = ("capsules" if few else "conv") if c.decoder == "auto" else c.decoder
        if decoder == "mlp":
            return MLPPatchDecoder(self.length, *sizes, width=c.decoder_width)
        if decoder == "conv":
            return ConvPatchDecoder(self.side, *sizes, depth=c.decoder_depth)
        return CapsuleDecoder(
            self.length, *sizes,
            depth=c.decoder_depth, dim=c.decoder_pose_dim, shared=c.decoder_shared,
        )  # fmt: skip

    @property
    def provides(self) -> frozenset[str]:
        if self.options.stage == "pretrain":
            return frozenset({"inpaint"})
        return frozenset({"logits"} if self.config.num_classes else ())

    def tokens(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """Backbone features of the patches in `rows`. images [B,C,H,W] -> [B,V,C']"""
        patches = keep(to_patches(self.normalize(images), self.options.patch_size), rows)
        return self.backbone(self.embed_norm(self.embed(patches)), rows)

    def capsules(self, tokens: Tensor, coupling: bool = False) -> list[Capsules]:
        """Primary capsules and the encoder's layers. tokens [B,V,C'] -> poses [B,V,I,D]"""
        c = self.options
        poses = self.primary(tokens).unflatten(2, (c.num_types, c.pose_dim))
        layers = [Capsules(poses, self.active(tokens).sigmoid())]
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            below = layers[-1]
            poses, active, shares = layer(below.poses, below.activations, coupling=coupling)
            poses = norm(poses.flatten(2)).unflatten(2, (c.num_types, c.pose_dim))
            poses = below.poses + poses if c.residual else poses
            if active is None:
                active = self.claims[number](poses).squeeze(-1).sigmoid()
            layers.append(Capsules(poses, active, shares))
        return layers

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.tokens(images, None).mT.unflatten(2, (self.side, self.side))

    def forward_capsules(self, features: Tensor, coupling: bool = False) -> MCAEOutput:
        return self._forward_tokens(features.flatten(2).mT, features, None, coupling)

    def encode(
        self, images: Tensor, rows: Tensor | None = None, *, coupling: bool = False
    ) -> MCAEOutput:
        """Capsules of the patches in `rows` [B,V]; None: all patches."""
        if rows is None:
            features = self.forward_features(images)
            if not self.provides:  # without a classifier
                return MCAEOutput(features=features)
            return self.forward_capsules(features, coupling)
        self.check_images(images)
        masked = torch.ones(rows.shape[0], self.length, dtype=torch.bool, device=rows.device)
        masked = masked.scatter(1, rows, False)
        return self._forward_tokens(self.tokens(images, rows), None, masked, coupling)

    def _forward_tokens(
        self, tokens: Tensor, features: Tensor | None, masked: Tensor | None, coupling: bool
    ) -> MCAEOutput:
        layers = self.capsules(tokens, coupling)
        if self.options.stage == "pretrain":
            return MCAEOutput(features=features, layers=tuple(layers), masked=masked)
        classes = self.classes(layers[-1].poses, layers[-1].activations, coupling=coupling)
        scores = classes.activations.mean(1)
        logits = scores.clamp_min(1e-8).log()
        return MCAEOutput(logits, scores, features, (*layers, classes), masked=masked)

    def inpaint(self, capsules: Capsules, rows: Tensor | None = None) -> Tensor:
        """Decode capsules to an image, with a learned capsule in place of removed patches.

        capsules of the encoder's last layer at the positions in `rows` -> [B,C,H,W]; see `target`
        """
        if self.decoder is None or capsules.activations is None:
            raise TorchcapsError(
                "This mcae has no decoder: only models with --model.stage pretrain reconstruct."
            )
        poses, active = capsules.poses, capsules.activations
        if rows is not None:
            poses = put_back(poses, rows, self.length, self.masked_pose)
            active = put_back(active, rows, self.length, self.masked_active.sigmoid())
        return from_patches(self.decoder(poses, active), self.options.patch_size, self.side)

    def forward(self, images: Tensor, *, coupling: bool = False) -> MCAEOutput:
        output = self.encode(images, coupling=coupling)
        if self.decoder is None:
            return output
        return replace(output, reconstruction=self.inpaint(output.layers[-1]))

    def patch_targets(self, images: Tensor) -> Tensor:
        """Target of the decoder for every patch. -> [B,L,P]"""
        if self.options.target == "standardized":
            return to_patches(self.standardize(images), self.options.patch_size)
        patches = to_patches(images, self.options.patch_size)
        if self.options.target == "pixels":
            return patches
        mean, std = _statistics(patches)
        return (patches - mean) / std

    def patch_pixels(self, decoded: Tensor, images: Tensor) -> Tensor:
        """Patches of a decoded image in pixels; normalized targets need the image's statistics."""
        if self.options.target == "standardized":
            decoded = self.standardize.inverse(decoded)
        patches = to_patches(decoded, self.options.patch_size)
        if self.options.target != "normalized":
            return patches
        mean, std = _statistics(to_patches(images, self.options.patch_size))
        return patches * std + mean

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        """Poses weighted by activations, and activations, averaged over positions. -> [B,I*D+I]"""
        last = self.capsules(self.tokens(images))[-1]
        assert last.activations is not None
        weighted = (last.poses * last.activations[..., None]).float().mean(1).flatten(1)
        return {"capsules": torch.cat([weighted, last.activations.float().mean(1)], 1)}


def _statistics(patches: Tensor) -> tuple[Tensor, Tensor]:
    return patches.mean(-1, keepdim=True), patches.std(-1, keepdim=True) + 1e-3


for name, config, summary in (
    ("mcae", MCAEConfig(), "masked capsule autoencoder, classifier (Everett et al. 2024)"),
    ("mcae-pretrain", MCAEConfig(stage="pretrain"),
     "masked capsule autoencoder with decoder, for pretraining"),
    ("mcae-pretrain-small", MCAEConfig(stage="pretrain", width=96, decoder="conv"),
     "small masked capsule autoencoder with decoder, for CPUs"),
    ("mcae-vit", MCAEConfig(backbone="vit"), "masked capsule autoencoder on a ViT"),
):  # fmt: skip
    register(name, MCAE, config, summary, listed=name != "mcae-vit")
