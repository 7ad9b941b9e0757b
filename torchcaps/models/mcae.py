"""Masked capsule autoencoder (Everett, Zhong, Leontidis 2024): pretraining and finetuning.

    patches -> (half of them removed) -> ConvMixer or ViT -> primary capsules, poses and activations
    -> self-routing inside each position, three layers of 16 capsules
    pretrain: a learned capsule where patches were removed -> fully connected capsules over all
              positions -> linear to pixels; the loss is on removed patches
    finetune: class capsules inside each position, their activations averaged over positions

There is no public code of the paper; choices where its text is silent are in docs/mcae.md. Which
patches are removed is the task's business (`encode(images, rows)`): removed patches are not in the
sequence at all, and a test holds that their pixels change nothing but the loss.
"""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.layers import Capsules, Normalise, PointwiseCaps, make_router
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
from torchcaps.models.base import CapsuleModel, ModelConfig, Output, register_output
from torchcaps.models.registry import register


@dataclass(frozen=True)
class MCAEConfig(ModelConfig):
    family: ClassVar[str] = "mcae"
    stage: Literal["pretrain", "finetune"] = "finetune"
    """pretrain: with a decoder; finetune: with class capsules in its place."""
    patch_size: int = 4
    """Side of a patch in pixels."""
    backbone: str = "convmixer"
    """convmixer, vit, or timm:NAME of one of timm's vision transformers."""
    width: int = 256
    """Width of the ConvMixer's tokens; the ViT's are capsules x pose."""
    depth: int = 4
    """Blocks of the backbone."""
    kernel_size: int = 5
    """Side of the ConvMixer's depthwise kernels."""
    num_caps: int = 16
    """Capsules at each position, in every layer."""
    dim: int = 16
    """Entries of a pose."""
    num_layers: int = 3
    """Layers of the capsule encoder."""
    routing: str = "self"
    """The encoder's routing: self, or any other."""
    route_std: float = 0.0
    """Standard deviation of self-routing's route weights at the start; 0: zero as in its authors'
    code, 0.01 in the class layer."""
    residual: bool = False
    """Whether what a layer of the encoder makes is added to the poses below it."""
    target: Literal["pixels", "standardised", "normalised"] = "pixels"
    """What the decoder draws: pixels, those less the mean of all images and by their deviation, or
    less their patch's mean and by its deviation."""
    decoder: Literal["capsules", "mlp", "conv"] = "capsules"
    """The decoder's kind: the paper's capsules, an MLP over all positions, or convolutions."""
    decoder_depth: int = 1
    """Layers of the capsule decoder, or blocks of the convolutional one."""
    decoder_dim: int = 32
    """Entries of a pose in the capsule decoder."""
    decoder_shared: bool = False
    """Whether transforms of the decoder go by capsule type alone, with an embedding of places."""
    decoder_width: float = 1.0
    """Width of the MLP decoder, as a share of the paper's."""


@register_output
@dataclass
class MCAEOutput(Output):
    masked: Tensor | None = field(
        default=None, metadata={"letters": "[B,L]", "what": "patches that the model was not shown"}
    )


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
        pixels, size = c.in_channels * c.patch_size**2, c.num_caps * c.dim
        self.normalise = Normalise(c.in_channels)
        self.standardise = Normalise(c.in_channels, grey=(0.1307, 0.3081))
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
        router = make_router(c.routing, route_std=c.route_std)
        self.layers = nn.ModuleList(
            PointwiseCaps(
                c.num_caps, c.dim, c.num_caps, c.dim, routing=router, matrix=router.matrices
            )
            for _ in range(c.num_layers)
        )  # fmt: skip
        self.norms = nn.ModuleList(TokenNorm(size) for _ in range(c.num_layers))
        bare = 0 if router.activations else c.num_layers
        self.claims = nn.ModuleList(nn.Linear(c.dim, 1) for _ in range(bare))
        if c.stage == "pretrain":
            self.masked_pose = nn.Parameter(torch.randn(c.dim) * 0.02)
            # as loud as the others: those of self-routing sum to one over the capsules
            loudness = -math.log(c.num_caps - 1) if c.routing == "self" and c.num_caps > 1 else 0.0
            self.masked_active = nn.Parameter(torch.tensor(loudness))
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

    @property
    def provides(self) -> frozenset[str]:
        if self.options.stage == "pretrain":
            return frozenset({"draw"})
        return frozenset({"logits"} if self.config.num_classes else ())

    def tokens(self, images: Tensor, rows: Tensor | None = None) -> Tensor:
        """images [B,C,H,W] -> what the backbone makes of the patches in `rows` [B,V,C']"""
        patches = keep(to_patches(self.normalise(images), self.options.patch_size), rows)
        return self.backbone(self.embed_norm(self.embed(patches)), rows)

    def capsules(self, tokens: Tensor, coupling: bool = False) -> list[Capsules]:
        """tokens [B,V,C'] -> primary capsules and the encoder's layers, poses [B,V,I,D]"""
        c = self.options
        poses = self.primary(tokens).unflatten(2, (c.num_caps, c.dim))
        layers = [Capsules(poses, self.active(tokens).sigmoid())]
        for number, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            below = layers[-1]
            made, active, shares = layer(below.poses, below.activations, coupling=coupling)
            made = norm(made.flatten(2)).unflatten(2, (c.num_caps, c.dim))
            made = below.poses + made if c.residual else made
            if active is None:
                active = self.claims[number](made).squeeze(-1).sigmoid()
            layers.append(Capsules(made, active, shares))
        return layers

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.tokens(images, None).mT.unflatten(2, (self.side, self.side))

    def answer(self, features: Tensor, coupling: bool = False) -> MCAEOutput:
        return self._answer(features.flatten(2).mT, features, None, coupling)

    def encode(
        self, images: Tensor, rows: Tensor | None = None, *, coupling: bool = False
    ) -> MCAEOutput:
        """Capsules of the patches in `rows` [B,V]; None: all of them."""
        if rows is None:
            features = self.forward_features(images)
            whole = self.provides  # no classes: the features alone
            return self.answer(features, coupling) if whole else MCAEOutput(features=features)
        self.check_images(images)
        every = torch.ones(rows.shape[0], self.length, dtype=torch.bool, device=rows.device)
        return self._answer(
            self.tokens(images, rows), None, every.scatter(1, rows, False), coupling
        )

    def _answer(
        self, tokens: Tensor, features: Tensor | None, masked: Tensor | None, coupling: bool
    ) -> MCAEOutput:
        layers = self.capsules(tokens, coupling)
        if self.options.stage == "pretrain":
            return MCAEOutput(features=features, layers=tuple(layers), masked=masked)
        classes = self.classes(layers[-1].poses, layers[-1].activations, coupling=coupling)
        scores = classes.activations.mean(1)
        logits = scores.clamp_min(1e-8).log()
        return MCAEOutput(logits, scores, features, (*layers, classes), masked=masked)

    def draw(self, capsules: Capsules, rows: Tensor | None = None) -> Tensor:
        """The decoder's patches as an image, with a learned capsule where patches were removed.

        capsules of the encoder's last layer at the places in `rows` -> [B,C,H,W]; see `target`
        """
        if self.decoder is None or capsules.activations is None:
            raise TorchcapsError("Only a masked autoencoder in its stage of pretraining draws.")
        poses, active = capsules.poses, capsules.activations
        if rows is not None:
            poses = put_back(poses, rows, self.length, self.masked_pose)
            active = put_back(active, rows, self.length, self.masked_active.sigmoid())
        return from_patches(self.decoder(poses, active), self.options.patch_size, self.side)

    def forward(self, images: Tensor, *, coupling: bool = False) -> MCAEOutput:
        output = self.encode(images, coupling=coupling)
        if self.decoder is None:
            return output
        return replace(output, reconstruction=self.draw(output.layers[-1]))

    def patch_targets(self, images: Tensor) -> Tensor:
        """What the decoder should draw of every patch. -> [B,L,P]"""
        if self.options.target == "standardised":
            return to_patches(self.standardise(images), self.options.patch_size)
        patches = to_patches(images, self.options.patch_size)
        if self.options.target == "pixels":
            return patches
        mean, deviation = _statistics(patches)
        return (patches - mean) / deviation

    def patch_pixels(self, drawn: Tensor, images: Tensor) -> Tensor:
        """A drawing's patches in pixels; where they are normalised, by the image's statistics."""
        if self.options.target == "standardised":
            drawn = self.standardise.undone(drawn)
        patches = to_patches(drawn, self.options.patch_size)
        if self.options.target != "normalised":
            return patches
        mean, deviation = _statistics(to_patches(images, self.options.patch_size))
        return patches * deviation + mean

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        """Poses weighed by activations and activations, averaged over positions. -> [B,I*D+I]"""
        last = self.capsules(self.tokens(images))[-1]
        assert last.activations is not None
        weighed = (last.poses * last.activations[..., None]).float().mean(1).flatten(1)
        return {"capsules": torch.cat([weighed, last.activations.float().mean(1)], 1)}


def _statistics(patches: Tensor) -> tuple[Tensor, Tensor]:
    return patches.mean(-1, keepdim=True), patches.std(-1, keepdim=True) + 1e-3


register("mcae", MCAE, MCAEConfig(), "masked capsule autoencoder, as a classifier")
register(
    "mcae-pretrain",
    MCAE,
    MCAEConfig(stage="pretrain"),
    "masked capsule autoencoder, with its decoder",
)
register("mcae-vit", MCAE, MCAEConfig(backbone="vit"), "masked capsule autoencoder on a ViT")
