"""EM-CapsNet (Hinton, Sabour, Frosst: Matrix Capsules with EM Routing, 2018).

    Conv(A,5,2) + ReLU -> primary capsules, 1x1: B types of 4x4 pose and an activation
    -> conv capsules C, 3x3/2 -> conv capsules D, 3x3/1 -> class capsules, transforms shared over
    positions, with coordinates; activations are class scores

A child's assignments sum to one over all parents that see it, types and places (`compete=all`).
Until this field was there each window normalised by itself, so a configuration that does not say,
as old files do not, means `window`; every model that has a name says `all`.

Differs from the paper: nothing in the layers (this is its small size: A=64, B=8, C=D=16); the loss
is the task's (`--task.loss spread`), with a fixed margin of 0.2, where the authors' growing one
stays for its first 100,000 steps.
"""

from dataclasses import dataclass, replace
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
    Normalise,
    PrimaryCaps,
    make_backbone,
)
from torchcaps.layers.backbone import ConvStem
from torchcaps.layers.stem import conv_out
from torchcaps.models.base import CapsuleModel, ModelConfig, Output
from torchcaps.models.registry import register


@dataclass(frozen=True)
class EMCapsNetConfig(ModelConfig):
    family: ClassVar[str] = "em-capsnet"
    oblong: ClassVar[bool] = True
    backbone: Literal["conv5", "conv4", "resnet"] = "conv5"
    """One 5x5 convolution; the 4x4 one with BatchNorm, or residual blocks, of `inverted`."""
    channels: int = 64
    """A: channels of the first convolution."""
    num_types: tuple[int, ...] = (8, 16, 16)
    """B, C, D: types of primary and of convolutional capsules."""
    pose_side: int = 4
    """Side of a matrix pose."""
    num_iters: int = 3
    """Iterations of the routing in every layer."""
    routing: Literal["em", "vb"] = "em"
    """EM, or variational Bayes (Ribeiro and others 2020) in its place."""
    compete: Literal["window", "all"] = "window"
    """Which parents share a child: those of each window by themselves, or all that see it. The
    named models have the paper's, all."""


class EMCapsNet(CapsuleModel):
    def __init__(self, config: EMCapsNetConfig):
        super().__init__()
        self.config = c = config
        primary, first, second = c.num_types
        dim = c.pose_side**2
        channels, narrowed = c.channels, lambda side: conv_out(side, 5, 2)
        if c.backbone == "conv5":
            self.stem: nn.Module = ConvStack(c.in_channels, (c.channels,), 5, (2,))
        else:
            stem = make_backbone("resnet", c.in_channels)
            if c.backbone == "conv4":
                stem = ConvStem(c.in_channels, c.channels, 4, norm=True)
            self.stem = nn.Sequential(Normalise(c.in_channels), stem)
            channels, narrowed = stem.out_channels, stem.out_side
        places = c.places(lambda side: conv_out(conv_out(narrowed(side), 3, 2), 3))
        if not places:
            raise TorchcapsError(f"{c.image_size} pixels are too few for three layers of windows.")
        self.primary = PrimaryCaps(channels, primary, dim, 1, 1, squash=False)
        self.active = nn.Conv2d(channels, primary, 1)
        router = {"em": EM, "vb": VB}[c.routing](c.num_iters, compete=c.compete)
        self.first = ConvCaps(primary, dim, first, dim, 3, 2, routing=router, matrix=True)
        self.second = ConvCaps(first, dim, second, dim, 3, 1, routing=router, matrix=True)
        last = VB(c.num_iters, std=0.1)
        if c.routing == "em":
            last = EM(c.num_iters, std=0.1, final_lambda=0.0025)
        self.classes = DenseCaps(
            places * second, dim, c.num_classes, dim,
            routing=last, shared=second, matrix=True, coordinates=True,
        )  # fmt: skip

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.stem(images)

    def answer(self, features: Tensor, coupling: bool = False) -> Output:
        active = self.active(features).sigmoid().permute(0, 2, 3, 1)
        layers = [Capsules(self.primary(features), active)]
        for layer in (self.first, self.second, self.classes):
            layers.append(layer(layers[-1].poses, layers[-1].activations, coupling=coupling))
        scores = layers[-1].activations
        assert scores is not None
        return Output(log_odds(scores), scores, features, tuple(layers))


_SMALL = EMCapsNetConfig(compete="all")
register("em-capsnet", EMCapsNet, _SMALL, "matrix capsules with EM routing (Hinton et al.)")
_WIDE = replace(
    _SMALL, in_channels=3, image_size=32, backbone="conv4", channels=256, num_types=(32, 32, 32),
    num_iters=2,
)  # fmt: skip
register("em-simple", EMCapsNet, _WIDE, "EM routing on one convolution, CIFAR")
register("em-resnet", EMCapsNet, replace(_WIDE, backbone="resnet"), "EM routing on residual blocks")
