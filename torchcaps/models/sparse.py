"""Sparse unsupervised capsules (Rawlinson, Ahmed, Kowadlo 2018): CapsNet's geometry, no labels.

    Conv(256,9,1) + ReLU -> primary capsules, Conv(256,9,2) as 32 types x 8 -> squash
    -> routing -> 16 latent capsules x 16; all but a few masked by rank (`layers/sparse.py`)
    decoder: FC(512) + FC(1024) + FC(pixels) from the masked capsules

On 40x40, which affNIST needs, primary capsules lie on 12x12 (the text's 6x6 is of 28x28). The start
is the authors': truncated normals, biases of 0.1, the primary convolution divided by 32 (their
softmax runs over 32 types), one bias a latent capsule inside each routing iteration.
`num_caps=(32, 16)` stacks two layers with a mask in each. Ours: `stem="norm"`, strided 3x3
convolutions with BatchNorm in place of both 9x9 ones; `frame=28`, capsules that see the part of the
image around its ink, whose drawing is put back where that was.
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
    make_router,
)
from torchcaps.layers.frame import Frame, moved
from torchcaps.layers.sparse import Kind, Ranking, SparseMask
from torchcaps.layers.stem import conv_out
from torchcaps.models.base import CapsuleModel, ModelConfig, Output, register_output
from torchcaps.models.registry import register


@dataclass(frozen=True)
class SparseConfig(ModelConfig):
    family: ClassVar[str] = "sparse"
    stem: Literal["conv", "norm"] = "conv"
    """The paper's 9x9 convolutions, or strided 3x3 ones with BatchNorm."""
    frame: int = 0
    """The side of a frame that follows the ink, and that the capsules see; 0: the whole image."""
    channels: int = 256
    """Channels of the first convolution."""
    kernel_size: int = 9
    """Side of the kernels of both convolutions of the paper's stem."""
    num_types: int = 32
    """Types of primary capsule at each position."""
    in_dim: int = 8
    """Entries of a primary capsule's pose."""
    num_caps: tuple[int, ...] = (16,)
    """Latent capsules of each layer, from the lowest."""
    out_dim: int = 16
    """Entries of a latent capsule's pose."""
    routing: str = "dynamic"
    """The routing to the latent capsules: dynamic, inverted, em, self, vb, none, or one's own."""
    num_iters: int = 3
    """Iterations of the routing, where it has any."""
    mask: Kind = "rank"
    """Which latent capsules the decoder sees: by rank, the first, the first k, or all of them."""
    gamma: float = 12.0
    """How steeply the mask falls with rank."""
    top_k: int = 3
    """How many capsules the mask top-k keeps."""
    low: float = 0.64
    """The frequency below which a capsule's boost rises, as a multiple of an even share."""
    high: float = 1.6
    """The frequency above which a capsule's boost falls, as a multiple of an even share."""
    boost_in_routing: bool = False
    """Whether boosts also multiply the couplings in every iteration of dynamic routing."""
    support: Literal["positions", "authors"] = "positions"
    """Support as the paper describes it, or with the slip of the authors' code."""
    hidden: tuple[int, ...] = (512, 1024)
    """Units of the decoder's hidden layers."""


@register_output
@dataclass
class SparseOutput(Output):
    rankings: tuple[Ranking, ...] = field(
        default=(), metadata={"letters": "", "what": "support, rank and mask of each latent layer"}
    )
    centre: Tensor | None = field(
        default=None,
        metadata={"letters": "[B,2]", "what": "where the frame stands, right and down"},
    )

    @property
    def drawable(self) -> Tensor | None:
        """Poses of the last layer as the decoder sees them: masked."""
        return None if self.capsules is None else self.capsules * self.rankings[-1].mask[..., None]


class SparseCapsNet(CapsuleModel):
    def __init__(self, config: SparseConfig):
        super().__init__()
        self.config = c = config
        if not c.num_caps:
            raise TorchcapsError("num_caps=(): there is at least one layer of latent capsules.")
        if not 0 <= c.frame <= c.image_size:
            raise TorchcapsError(f"frame={c.frame}: it fits into the image of {c.image_size}.")
        self.frame = Frame(c.in_channels, c.frame) if c.frame else None
        size = c.frame or c.image_size
        if c.stem == "norm":
            width = c.num_types * c.in_dim
            self.stem: nn.Module = NormStack(c.in_channels, (64, 128, width), (2, 2, 1))
            self.primary: nn.Module = PrimaryCaps(width, c.num_types, c.in_dim, 1, 1)
            side = (size + 3) // 4
        else:
            self.stem = ConvStack(c.in_channels, (c.channels,), c.kernel_size, (1,))
            self.primary = PrimaryCaps(
                c.channels, c.num_types, c.in_dim, c.kernel_size, 2, scale=1 / 32
            )
            side = conv_out(conv_out(size, c.kernel_size), c.kernel_size, 2)
        if side < 1:
            raise TorchcapsError(
                f"{size} pixels are too few for two convolutions of {c.kernel_size}."
            )
        if c.boost_in_routing and c.routing != "dynamic":
            raise TorchcapsError("boost_in_routing is made for dynamic routing.")
        routing = "uniform" if c.routing == "none" else c.routing
        router = make_router(routing, num_iters=c.num_iters, bias=True)
        self.reads_activations = router.activations
        self.boost_in_routing = c.boost_in_routing
        self.latent, self.masks = nn.ModuleList(), nn.ModuleList()
        children, dim = side * side * c.num_types, c.in_dim
        for count in c.num_caps:
            self.latent.append(DenseCaps(children, dim, count, c.out_dim, routing=router))
            self.masks.append(
                SparseMask(
                    count, c.mask, gamma=c.gamma, k=c.top_k, low=c.low, high=c.high,
                    support=c.support,
                )
            )  # fmt: skip
            children, dim = count, c.out_dim
        self.decoder = MLPDecoder(children * dim, c.hidden, (c.in_channels, size, size))
        if c.stem == "conv":
            self._start_as_authors()

    def _start_as_authors(self) -> None:
        """Truncated normals, cut at two deviations, and biases of 0.1."""
        assert isinstance(self.stem, ConvStack) and isinstance(self.primary, PrimaryCaps)
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
        return frozenset({"decode", "redraw", "ranks"})

    def encode(self, images: Tensor, *, coupling: bool = False) -> SparseOutput:
        self.check_images(images)
        centre = None
        if self.frame is not None:
            images, centre = self.frame(images)
        features = self.stem(images)
        primary = Capsules(self.primary(features))
        layers, rankings = [primary], []
        below, grid = primary, tuple(primary.poses.shape[1:4])
        for layer, mask in zip(self.latent, self.masks, strict=True):
            active = below.activations
            if self.reads_activations and active is None:
                active = below.poses.norm(dim=-1)
            gain = mask.boost if self.boost_in_routing else None
            found: Capsules = layer(below.poses, active, coupling=True, gain=gain)
            ranking: Ranking = mask(found.coupling, grid)
            rankings.append(ranking)
            layers.append(found if coupling else found._replace(coupling=None))
            grid = (found.poses.shape[1],)
            activations = found.activations
            if activations is not None:
                activations = activations * ranking.mask
            below = Capsules(found.poses * ranking.mask[..., None], activations)
        return SparseOutput(
            features=features, layers=tuple(layers), rankings=tuple(rankings), centre=centre
        )

    def decode(self, poses: Tensor, labels: Tensor | None = None) -> Tensor:
        """Draw from the poses as they are; `drawable` of an output has those that a mask left.

        With a frame the drawing stands in the middle of the image.
        """
        assert self.decoder is not None
        drawn = self.decoder(poses.flatten(1))
        if self.frame is None:
            return drawn
        return moved(drawn, drawn.new_zeros(drawn.shape[0], 2), self.config.image_size)

    def forward(self, images: Tensor, *, coupling: bool = False) -> SparseOutput:
        output = self.encode(images, coupling=coupling)
        assert self.decoder is not None and output.drawable is not None
        drawn = self.decoder(output.drawable.flatten(1))
        if output.centre is not None:
            drawn = moved(drawn, output.centre, self.config.image_size)
        return replace(output, reconstruction=drawn)

    def representations(self, images: Tensor) -> dict[str, Tensor]:
        """All latent capsules, those that the mask leaves, the support beside the first; pixels, of
        the image or of the frame.
        """
        output = self.encode(images)
        assert output.capsules is not None and output.drawable is not None
        whole, support = output.capsules.flatten(1), output.rankings[-1].support
        return {
            "unmasked": whole,
            "masked": output.drawable.flatten(1),
            "unmasked with support": torch.cat([whole, support / support.amax(1, True)], 1),
            "pixels": (images if self.frame is None else self.frame(images)[0]).flatten(1),
        }


register("sparse", SparseCapsNet, SparseConfig(), "sparse unsupervised capsules, masked by rank")
register(
    "sparse-dense", SparseCapsNet, SparseConfig(mask="none"), "the same without a mask: its control"
)
register(
    "sparse-small",
    SparseCapsNet,
    SparseConfig(stem="norm", num_types=8, hidden=(128, 256)),
    "sparse capsules on a narrow strided stem, for a CPU",
)
