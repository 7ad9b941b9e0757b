"""EM-CapsNet (Hinton, Sabour, Frosst: Matrix Capsules with EM Routing, 2018).

    Conv(A,5,2) + ReLU -> primary capsules, 1x1: B types of 4x4 pose and an activation
    -> conv capsules C, 3x3/2 -> conv capsules D, 3x3/1 -> class capsules, transforms shared over
    positions, with coordinates; activations are class scores

A child's assignments sum to one over all parents that see it, types and positions
(`compete="all"`), or over the parents of each window separately (`compete="window"`).

Differs from the paper: not in the layers (this is its small size: A=64, B=8, C=D=16); the loss
belongs to the task (`--task.loss spread`) and has a fixed margin of 0.2, the value of the authors'
growing margin in its first 100,000 steps.

The authors' code differs from their text. `official=True` is their code: routing by `EM.official`,
initial weights, and coordinates in the first two entries of a vote instead of its last column (of
the grid in [0,1]; theirs are in hundredths of pixels about the center). On affNIST it is no better
(docs/papers/robustness.md), so the recipes follow the text.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.functional import log_odds
from torchcaps.layers import (
    EM,
    VB,
    Capsules,
    ConvCaps,
    ConvStack,
    DenseCaps,
    Normalize,
    PrimaryCaps,
    Router,
    make_backbone,
)
from torchcaps.layers.stems import ConvStem, conv_out
from torchcaps.models.base import Model, ModelConfig, Output
from torchcaps.models.fields import Count, Iterations
from torchcaps.models.registry import register
from torchcaps.routing.competition import PLACES


@dataclass(frozen=True, kw_only=True)
class EMCapsNetConfig(ModelConfig):
    family: ClassVar[str] = "em-capsnet"
    oblong: ClassVar[bool] = True
    backbone: Literal["conv5", "conv4", "resnet"] = "conv5"
    """One 5x5 convolution (conv5), or from `inverted` a 4x4 one with BatchNorm or residual blocks.
    """
    channels: Count = 64
    """A: channels of the first convolution."""
    num_types: tuple[Count, ...] = (8, 16, 16)
    """B, C, D: types of primary and of convolutional capsules."""
    pose_dim: Count = 16
    """Entries of a pose, a square matrix."""
    num_iters: Iterations = 3
    """Routing iterations in every layer."""
    routing: Literal["em", "vb"] = "em"
    """EM, or variational Bayes (Ribeiro et al. 2020)."""
    compete: Literal["all", "window", "places", "released"] = field(
        default="all", metadata={"digest_default": "window"}
    )
    """Parents that compete for a child: all that see it, or those of each window separately; or
    places instead of types, see `torchcaps.routing.competition`."""
    official: bool = False
    """EM routing, competition and initial weights of the authors' code."""


class EMCapsNet(Model):
    def __init__(self, config: EMCapsNetConfig):
        super().__init__()
        self.config = c = config
        if c.official and (c.routing != "em" or c.compete != "all"):
            raise TorchcapsError(
                "official=True decides routing and compete. Leave out these options."
            )
        self.coupling_sums = "one over windows" if c.compete == "all" else "one"
        if c.official or c.compete in PLACES:
            self.coupling_sums = "any"
        primary, first, second = c.num_types
        dim = c.pose_dim
        channels, narrowed = c.channels, lambda side: conv_out(side, 5, 2)
        if c.backbone == "conv5":
            self.stem: nn.Module = ConvStack(c.in_channels, (c.channels,), 5, (2,))
        else:
            stem = make_backbone("resnet", c.in_channels)
            if c.backbone == "conv4":
                stem = ConvStem(c.in_channels, c.channels, 4, norm=True)
            self.stem = nn.Sequential(Normalize(c.in_channels), stem)
            channels, narrowed = stem.out_channels, stem.out_side
        places = c.places(lambda side: conv_out(conv_out(narrowed(side), 3, 2), 3))
        if not places:
            raise TorchcapsError(
                f"{c.image_size} pixels are too few for three layers of windows; use larger images."
            )
        self.primary = PrimaryCaps(
            in_channels=channels,
            num_types=primary,
            out_dim=dim,
            kernel_size=1,
            stride=1,
            squash=False,
        )
        self.active = nn.Conv2d(channels, primary, 1)
        router: Router = {"em": EM, "vb": VB}[c.routing](num_iters=c.num_iters, compete=c.compete)
        if c.official:
            router = EM.official(c.num_iters)
            nn.init.normal_(self.primary.conv.weight, std=0.5)
            nn.init.normal_(self.active.weight, std=3.0)
            nn.init.constant_(self.active.bias, -1.0)  # pyright: ignore  (it has a bias)
        self.first, self.second = (
            ConvCaps(
                in_caps=children,
                in_dim=dim,
                out_caps=parents,
                out_dim=dim,
                kernel_size=3,
                stride=stride,
                routing=router,
                matrix=True,
            )
            for children, parents, stride in ((primary, first, 2), (first, second, 1))
        )
        last: Router = VB(num_iters=c.num_iters, std=0.1)
        if c.official:
            last = EM.official(c.num_iters, classes=True)
        elif c.routing == "em":
            last = EM(num_iters=c.num_iters, std=0.1, final_lambda=0.0025)
        self.classes = DenseCaps(
            in_caps=places * second, in_dim=dim, out_caps=c.num_classes, out_dim=dim,
            routing=last, shared=second, matrix=True, coordinates="first" if c.official else True,
        )  # fmt: skip

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.stem(images)

    def forward_capsules(self, features: Tensor, coupling: bool = False) -> Output:
        active = self.active(features).sigmoid().permute(0, 2, 3, 1)
        layers = [Capsules(self.primary(features), active)]
        for layer in (self.first, self.second, self.classes):
            layers.append(layer(layers[-1].poses, layers[-1].activations, coupling=coupling))
        scores = layers[-1].activations
        assert scores is not None
        return Output(log_odds(scores), scores, features, tuple(layers))


_SMALL = EMCapsNetConfig()
register("em-capsnet", EMCapsNet, _SMALL, "matrix capsules with EM routing (Hinton et al. 2018)")
_NARROW = replace(_SMALL, num_types=(4, 8, 8), num_iters=2)
register("em-capsnet-small", EMCapsNet, _NARROW, "small matrix capsules with EM routing for CPUs")
_WIDE = replace(
    _SMALL, in_channels=3, image_size=32, backbone="conv4", channels=256, num_types=(32, 32, 32),
    num_iters=2,
)  # fmt: skip
register("em-simple", EMCapsNet, _WIDE, "EM routing on one convolution, for CIFAR", listed=False)
register(
    "em-resnet",
    EMCapsNet,
    replace(_WIDE, backbone="resnet"),
    "EM routing on residual blocks, for CIFAR",
    listed=False,
)
