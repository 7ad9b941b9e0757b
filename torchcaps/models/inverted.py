"""Capsules with inverted dot-product attention (Tsai, Srivastava, Goh, Salakhutdinov 2020).

    backbone -> primary capsules, LayerNorm -> conv capsules -> … -> class capsules
    -> one linear map from pose to score, the same for every class

Concurrent routing: the first pass goes up through the layers, each from a uniform coupling; then in
every pass all layers take one step at once, each from the layer below and from its own parents as
the pass before left them. `num_iters` counts the first pass: the paper's two iterations are 2.

A layer's last passes reach no output: what layer n of N does in pass t moves up one layer a pass.
They are left out (`alive`), and not one bit of the scores changes. With two passes only the class
capsules attend at all.

`num_iters="converged"`: passes until little changes or there were 30, by Anderson acceleration,
with the gradient of the implicit function, so that memory does not grow with passes. Nothing forces
the passes to converge; the output's `residual` says how near they came.
"""

import copy
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.layers import (
    Capsules,
    ConvCaps,
    DenseCaps,
    Normalise,
    PrimaryCaps,
    make_backbone,
    make_router,
)
from torchcaps.layers.stem import conv_out
from torchcaps.models.base import CapsuleModel, ModelConfig, Output, register_output
from torchcaps.models.registry import register
from torchcaps.models.tracing import Passes
from torchcaps.routing import Solver, fixed_point


@dataclass(frozen=True)
class InvertedConfig(ModelConfig):
    family: ClassVar[str] = "inverted"
    oblong: ClassVar[bool] = True
    backbone: str = "simple"
    """simple (one convolution), resnet, resnet-wide, or timm:NAME."""
    channels: int = 128
    """Channels of the simple backbone: 128 in the authors' code, 256 in the paper."""
    primary_kernel: int = 1
    """Side of the kernel that makes primary capsules."""
    primary_stride: int = 1
    """Stride of that convolution."""
    num_types: int = 32
    """Types of capsule at each position."""
    pose_dim: int = 16
    """Entries of a pose."""
    matrix: bool = True
    """Square matrices as poses and transforms, or vectors of as many entries."""
    kernels: tuple[int, ...] = (3, 3)
    """Sides of the windows of the convolutional capsule layers."""
    strides: tuple[int, ...] = (2, 1)
    """Strides of those windows."""
    dense: tuple[int, ...] = ()
    """Capsules of fully connected layers before the classes."""
    num_iters: int | Literal["converged"] = 2
    """Passes of routing, the uniform one counted, or passes until little changes."""
    concurrent: bool = True
    """Whether all layers iterate at once; else one after the other (ablation B)."""
    norm: bool = True
    """Whether parents go through a LayerNorm (ablation A: they do not)."""
    activations: bool = False
    """Whether children count by an activation (ablation C): the sigmoid of a linear map of the
    pose, which scales the pose. The paper has EM's activations."""
    scale: bool = True
    """Whether agreement is divided by the square root of the pose's size, as in the authors' code.
    """
    routing: str = "inverted"
    """The routing of every layer; all but inverted go one layer after the other."""


@register_output
@dataclass
class InvertedOutput(Output):
    residual: Tensor | None = field(
        default=None,
        metadata={"letters": "[B]", "what": "how much one more pass would change each image"},
    )


def _left(side: int, window: tuple[int, int]) -> int:
    """What a window (kernel, stride) leaves of a side."""
    return conv_out(side, *window)


class Inverted(CapsuleModel):
    def __init__(self, config: InvertedConfig):
        super().__init__()
        self.config = self.options = c = config
        if c.num_iters != "converged" and c.num_iters < 1:
            raise TorchcapsError(f"num_iters={c.num_iters}: there is at least the first pass.")
        self.normalise = Normalise(c.in_channels)
        self.backbone = make_backbone(c.backbone, c.in_channels, c.channels)
        windows = ((c.primary_kernel, c.primary_stride), *zip(c.kernels, c.strides, strict=True))
        places = c.places(lambda side: reduce(_left, windows, self.backbone.out_side(side)))
        self.primary = PrimaryCaps(
            self.backbone.out_channels, c.num_types, c.pose_dim,
            c.primary_kernel, c.primary_stride, squash=False, bias=False,
        )  # fmt: skip
        self.primary_norm = nn.LayerNorm(c.pose_dim) if c.norm else nn.Identity()
        iterations = c.num_iters if isinstance(c.num_iters, int) else 2
        router = make_router(c.routing, num_iters=iterations, norm=c.norm, scale=c.scale)
        self.concurrent = c.concurrent and hasattr(router, "attend")
        layers: list[nn.Module] = []
        for kernel, stride in zip(c.kernels, c.strides, strict=True):
            layers.append(
                ConvCaps(
                    c.num_types, c.pose_dim, c.num_types, c.pose_dim, kernel, stride,
                    routing=router, matrix=c.matrix,
                )
            )  # fmt: skip
        if not places:
            raise TorchcapsError(f"{c.image_size} pixels are too few for these windows.")
        children = places * c.num_types
        for parents in (*c.dense, c.num_classes):
            dense = DenseCaps(
                children, c.pose_dim, parents, c.pose_dim, routing=router, matrix=c.matrix
            )
            layers.append(dense)
            children = parents
        self.layers = nn.ModuleList(layers)
        self.active = nn.Linear(c.pose_dim, 1) if c.activations or router.activations else None
        self.head = nn.Linear(c.pose_dim, 1)
        self.solver = Solver()

    @property
    def provides(self) -> frozenset[str]:
        if not self.config.num_classes:
            return frozenset()
        return frozenset({"logits", "passes"} if self.concurrent else {"logits"})

    def forward_features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.backbone(self.normalise(images))

    def answer(self, features: Tensor, coupling: bool = False) -> Output:
        primary = Capsules(self.primary_norm(self.primary(features)))
        layers, residual = self.route(primary, coupling)
        logits = self.head(layers[-1].poses).squeeze(-1)
        return InvertedOutput(
            logits, features=features, layers=(primary, *layers), residual=residual
        )

    def route(
        self, primary: Capsules, coupling: bool = False
    ) -> tuple[list[Capsules], Tensor | None]:
        """primary poses [B,H,W,I,D] -> the layers above, with where the last pass of each sent its
        children; and how much one more pass would change, where passes go on until little does.
        """
        if not self.concurrent:
            return self._one_layer_after_the_other(primary, coupling), None
        iters, last = self.options.num_iters, len(self.layers) - 1
        if iters == "converged" and torch.compiler.is_exporting():
            raise TorchcapsError(
                "num_iters='converged' passes as often as the data needs, which cannot be "
                "exported; give a number of passes."
            )
        passes = 2 if iters == "converged" else iters
        layers = [primary]
        for number in range(len(self.layers)):
            only = coupling and iters != "converged" and last - number > passes - 2
            layers.append(self.attend(number, layers[-1].poses, None, only))
        if iters == "converged":
            return self._converge(layers, coupling)
        for left in range(passes - 2, -1, -1):  # passes after this one
            before, layers = layers, list(layers)
            for number in range(max(0, last - left), last + 1):
                its_last = coupling and number == last - left
                below, own = before[number].poses, before[number + 1].poses
                layers[number + 1] = self.attend(number, below, own, its_last)
        return layers[1:], None

    @torch.no_grad()
    def trace(self, images: Tensor) -> tuple[Passes, ...]:
        """Layer n of N takes its pass t in forwards of t + N - n passes and more, and takes no more
        passes than the scores can show: so forwards of 1, 2, … passes give them all.
        """
        iters = self.options.num_iters
        if not self.concurrent:
            return super().trace(images)
        if iters == "converged":
            return tuple((layer,) for layer in self.encode(images, coupling=True).layers[1:])
        found: list[list[Capsules]] = [[] for _ in self.layers]
        last = len(self.layers) - 1
        for count in range(1, iters + 1):
            other = copy.copy(self)
            other.options = replace(self.options, num_iters=count)
            layers = other.encode(images, coupling=True).layers[1:]
            for number, layer in enumerate(layers):
                if len(found[number]) < max(1, count - (last - number)):
                    found[number].append(layer)
        return tuple(map(tuple, found))

    def attend(
        self, number: int, poses: Tensor, parents: Tensor | None, coupling: bool = False
    ) -> Capsules:
        """One pass of one layer."""
        layer, poses = self.layers[number], self._weighed(poses)
        if isinstance(layer, ConvCaps):
            return layer.attend(poses, parents, layer.window, coupling)
        assert isinstance(layer, DenseCaps)
        return layer.attend(poses.flatten(1, -2), parents, None, coupling)

    def _weighed(self, poses: Tensor) -> Tensor:
        """Votes are linear in poses, so a child that counts half has half a pose."""
        return poses if self.active is None else poses * self.active(poses).sigmoid()

    def _one_layer_after_the_other(self, primary: Capsules, coupling: bool) -> list[Capsules]:
        layers, active = [primary], primary.activations
        reads = any(getattr(layer.router, "activations", False) for layer in self.layers)
        if reads and self.active is not None:
            active = self.active(primary.poses).squeeze(-1).sigmoid()
        for layer in self.layers:
            poses = layers[-1].poses if reads else self._weighed(layers[-1].poses)
            layers.append(layer(poses, active, coupling=coupling))
            active = layers[-1].activations
        return layers[1:]

    def _converge(
        self, layers: list[Capsules], coupling: bool
    ) -> tuple[list[Capsules], Tensor | None]:
        """All layers' parents as one state, from those of the first pass to a fixed point."""
        primary, poses = layers[0], [capsules.poses for capsules in layers[1:]]
        shapes = [p.shape[1:] for p in poses]
        sizes = [shape.numel() for shape in shapes]

        def split(state: Tensor) -> list[Tensor]:
            parts = state.split(sizes, 1)
            return [p.unflatten(1, s) for p, s in zip(parts, shapes, strict=True)]

        def join(parts: list[Tensor]) -> Tensor:
            return torch.cat([p.flatten(1) for p in parts], 1)

        def passed(below: list[Tensor], coupling: bool = False) -> list[Capsules]:
            numbers = range(len(self.layers))
            return [self.attend(n, below[n], below[n + 1], coupling) for n in numbers]

        def step(state: Tensor) -> Tensor:
            return join([c.poses for c in passed([primary.poses, *split(state)])])

        state, residual = fixed_point(step, join(poses), self.solver)
        reached = split(state)
        if not coupling:
            return [Capsules(p) for p in reached], residual
        more = passed([primary.poses, *reached], True)
        pairs = zip(more, reached, strict=True)
        return [capsules._replace(poses=p) for capsules, p in pairs], residual


CIFAR100 = {"pose_dim": 36, "dense": (20,), "num_classes": 100}
MULTI = {
    "channels": 1024, "primary_kernel": 3, "primary_stride": 2, "num_types": 16, "pose_dim": 64,
    "kernels": (3,), "strides": (1,), "image_size": 36,
}  # fmt: skip
COLOUR = {"in_channels": 3, "image_size": 32}

for name, fields, summary in (
    ("inverted-simple", COLOUR, "inverted attention on one convolution, CIFAR-10"),
    ("inverted-resnet", {**COLOUR, "backbone": "resnet"}, "inverted attention on residual blocks"),
    ("inverted-simple-100", {**COLOUR, **CIFAR100}, "inverted attention, 6x6 poses, CIFAR-100"),
    ("inverted-resnet-100", {**COLOUR, **CIFAR100, "backbone": "resnet"},
     "inverted attention on residual blocks, 6x6 poses, CIFAR-100"),
    ("inverted-multi", {**MULTI, "matrix": False}, "inverted attention, 64-d poses, two digits"),
    ("inverted-multi-matrix", MULTI, "inverted attention, 8x8 poses, two digits"),
    ("dynamic-multi", {**MULTI, "matrix": False, "routing": "dynamic", "num_iters": 3},
     "dynamic routing, 64-d poses, two digits"),
):  # fmt: skip
    register(name, Inverted, InvertedConfig(**fields), summary)  # pyright: ignore
