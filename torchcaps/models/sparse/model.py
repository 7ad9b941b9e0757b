"""Sparse unsupervised capsules (Rawlinson, Ahmed, Kowadlo 2018): CapsNet's geometry, no labels.

    Conv(256,9,1) + ReLU -> primary capsules, Conv(256,9,2) as 32 types x 8 -> squash
    -> routing -> 16 latent capsules x 16; all but a few masked by rank (`models/sparse/mask.py`)
    decoder: FC(512) + FC(1024) + FC(pixels) from the masked capsules

On 40x40 pixels, which affNIST needs, primary capsules form a 12x12 grid (the paper's 6x6 is for
28x28). Initialization follows the authors: truncated normals, biases of 0.1, the primary
convolution divided by 32 (their softmax runs over 32 types), one bias per latent capsule inside
each routing iteration. `num_caps=(32, 16)` stacks two layers with a mask in each. Not in the paper:
`backbone="norm"`, strided 3x3 convolutions with BatchNorm instead of both 9x9 ones; `frame=28`,
capsules that see a crop around the ink, with the reconstruction placed back at its position.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.layers import (
    Capsules,
    ConvStack,
    DenseCaps,
    MLPDecoder,
    NormStack,
    PrimaryCaps,
    router_with,
)
from torchcaps.layers.stems import conv_out
from torchcaps.models.base import Model, ModelConfig, Output, described, register_output
from torchcaps.models.fields import Count, Iterations, Kernel, SideOrNone, Weight
from torchcaps.models.registry import register
from torchcaps.models.sparse.frame import Frame, shifted
from torchcaps.models.sparse.mask import Kind, Ranking, SparseMask


@dataclass(frozen=True, kw_only=True)
class SparseConfig(ModelConfig):
    family: ClassVar[str] = "sparse"
    backbone: Literal["conv", "norm"] = field(default="conv", metadata={"digest": "stem"})
    """The paper's 9x9 convolutions (conv), or strided 3x3 ones with BatchNorm (norm)."""
    frame: SideOrNone = 0
    """Side of the crop around the ink that the capsules see; 0: the whole image."""
    channels: Count = 256
    """Channels of the first convolution."""
    kernel_size: Kernel = 9
    """Kernel size of both convolutions of the paper's stem."""
    num_types: Count = 32
    """Types of primary capsule at each position."""
    pose_dim: Count = field(default=8, metadata={"digest": "in_dim"})
    """Entries of a primary capsule's pose."""
    num_caps: tuple[Count, ...] = (16,)
    """Number of latent capsules in each layer, from the lowest."""
    latent_pose_dim: Count = field(default=16, metadata={"digest": "out_dim"})
    """Entries of a latent capsule's pose."""
    routing: str = "dynamic"
    """Routing to the latent capsules: dynamic, inverted, em, self, vb, uniform, or your own.
    """
    num_iters: Iterations = 3
    """Routing iterations, for iterative routings."""
    mask: Kind = "rank"
    """Latent capsules that the decoder sees: weighted by rank, the first, the top k, or all."""
    gamma: Weight = 12.0
    """Decay of the mask with rank."""
    top_k: Count = 3
    """Number of capsules that the mask top-k keeps."""
    low: Weight = 0.64
    """Frequency below which a capsule's boost rises, as a multiple of 1 / number of capsules."""
    high: Weight = 1.6
    """Frequency above which a capsule's boost falls, as a multiple of 1 / number of capsules."""
    boost_in_routing: bool = False
    """Multiply the couplings by the boosts in every iteration of dynamic routing."""
    support: Literal["positions", "authors"] = "positions"
    """Support as in the paper (positions), or with the bug of the authors' code (authors)."""
    hidden: tuple[Count, ...] = (512, 1024)
    """Units of the decoder's hidden layers."""


@register_output
@dataclass
class SparseOutput(Output):
    rankings: tuple[Ranking, ...] = described("", "support, rank and mask of each latent layer", ())
    centre: Tensor | None = described("[B,2]", "position of the frame, right and down")

    @property
    def decoder_input(self) -> Tensor | None:
        """Masked poses of the last layer, as the decoder sees them."""
        return None if self.capsules is None else self.capsules * self.rankings[-1].mask[..., None]


class SparseCapsNet(Model):
    def __init__(self, config: SparseConfig):
        super().__init__()
        self.config = c = config
        if not c.num_caps:
            raise TorchcapsError(
                "num_caps=() has no layer: give at least one layer of latent capsules, as (16,)."
            )
        if not 0 <= c.frame <= c.image_size:
            raise TorchcapsError(
                f"frame={c.frame} is outside the range from 0 to the image size {c.image_size}."
            )
        self.frame = Frame(c.in_channels, c.frame) if c.frame else None
        size = c.frame or c.image_size
        if c.backbone == "norm":
            width, kernel_size, stride, scale = c.num_types * c.pose_dim, 1, 1, 1.0
            self.stem: nn.Module = NormStack(c.in_channels, (64, 128, width), (2, 2, 1))
            side = (size + 3) // 4
        else:
            width, kernel_size, stride, scale = c.channels, c.kernel_size, 2, 1 / c.num_types
            self.stem = ConvStack(c.in_channels, (width,), kernel_size, (1,))
            side = conv_out(conv_out(size, kernel_size), kernel_size, 2)
        self.primary = PrimaryCaps(
            in_channels=width, num_types=c.num_types, out_dim=c.pose_dim,
            kernel_size=kernel_size, stride=stride, scale=scale,
        )  # fmt: skip
        if side < 1:
            raise TorchcapsError(
                f"{size} pixels are too few for two convolutions of {c.kernel_size}."
            )
        if c.boost_in_routing and c.routing != "dynamic":
            raise TorchcapsError(
                f"boost_in_routing needs dynamic routing; routing is {c.routing!r}."
            )
        routing = "uniform" if c.routing == "none" else c.routing
        router = router_with(routing, num_iters=c.num_iters, bias=True)
        self.uses_activations = router.activations
        self.boost_in_routing = c.boost_in_routing
        self.latent, self.masks = nn.ModuleList(), nn.ModuleList()
        children, dim = side * side * c.num_types, c.pose_dim
        for count in c.num_caps:
            self.latent.append(
                DenseCaps(
                    in_caps=children,
                    in_dim=dim,
                    out_caps=count,
                    out_dim=c.latent_pose_dim,
                    routing=router,
                )
            )
            self.masks.append(
                SparseMask(
                    count, c.mask, gamma=c.gamma, k=c.top_k, low=c.low, high=c.high,
                    support=c.support,
                )
            )  # fmt: skip
            children, dim = count, c.latent_pose_dim
        self.decoder = MLPDecoder(
            in_units=children * dim, hidden=c.hidden, image_shape=(c.in_channels, size, size)
        )
        if c.backbone == "conv":
            self._init_as_authors()

    def _init_as_authors(self) -> None:
        """Truncated normals, cut at two standard deviations, and biases of 0.1."""
        for name, parameter in self.named_parameters():
            if name.startswith("frame"):
                continue
            if name.endswith("bias"):
                nn.init.constant_(parameter, 0.1)
            elif parameter.dim() > 1:
                std = 0.05 if name.startswith("stem") else 0.1
                nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"decode", "reconstruct", "ranks"})

    def encode(self, images: Tensor, *, coupling: bool = False) -> SparseOutput:
        self.check_images(images)
        center = None
        if self.frame is not None:
            images, center = self.frame(images)
        features = self.stem(images)
        primary = Capsules(self.primary(features))
        layers, rankings = [primary], []
        below, grid = primary, tuple(primary.poses.shape[1:4])
        for layer, mask in zip(self.latent, self.masks, strict=True):
            active = below.activations
            if self.uses_activations and active is None:
                active = below.poses.norm(dim=-1)
            gain = mask.boost if self.boost_in_routing else None
            parents: Capsules = layer(below.poses, active, coupling=True, gain=gain)
            ranking: Ranking = mask(parents.coupling, grid)
            rankings.append(ranking)
            layers.append(parents if coupling else parents._replace(coupling=None))
            grid = (parents.poses.shape[1],)
            activations = parents.activations
            if activations is not None:
                activations = activations * ranking.mask
            below = Capsules(parents.poses * ranking.mask[..., None], activations)
        return SparseOutput(
            features=features, layers=tuple(layers), rankings=tuple(rankings), centre=center
        )

    def decode(self, poses: Tensor, labels: Tensor | None = None) -> Tensor:
        """Decode poses without applying a mask; `Output.decoder_input` has the masked poses.

        With a frame the reconstruction is in the middle of the image.
        """
        assert self.decoder is not None
        images = self.decoder(poses.flatten(1))
        if self.frame is None:
            return images
        return shifted(images, images.new_zeros(images.shape[0], 2), self.config.image_size)

    def forward(self, images: Tensor, *, coupling: bool = False) -> SparseOutput:
        output = self.encode(images, coupling=coupling)
        assert self.decoder is not None and output.decoder_input is not None
        reconstruction = self.decoder(output.decoder_input.flatten(1))
        if output.centre is not None:
            reconstruction = shifted(reconstruction, output.centre, self.config.image_size)
        return replace(output, reconstruction=reconstruction)

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        """Latent capsules before and after the mask, the former with their support, and the pixels
        of the image or of the frame.
        """
        output = self.encode(images)
        assert output.capsules is not None and output.decoder_input is not None
        unmasked, support = output.capsules.flatten(1), output.rankings[-1].support
        return {
            "unmasked": unmasked,
            "masked": output.decoder_input.flatten(1),
            "unmasked with support": torch.cat([unmasked, support / support.amax(1, True)], 1),
            "pixels": (images if self.frame is None else self.frame(images)[0]).flatten(1),
        }


register(
    "sparse", SparseCapsNet, SparseConfig(), "sparse unsupervised capsules (Rawlinson et al. 2018)"
)
register(
    "sparse-dense",
    SparseCapsNet,
    SparseConfig(mask="none"),
    "unsupervised capsules without a mask, a baseline",
    listed=False,
)
register(
    "sparse-small",
    SparseCapsNet,
    SparseConfig(backbone="norm", num_types=8, hidden=(128, 256)),
    "small sparse unsupervised capsules for CPUs",
)
