"""Capsules with inverted dot-product attention (Tsai, Srivastava, Goh, Salakhutdinov 2020).

    backbone -> primary capsules, LayerNorm -> conv capsules -> … -> class capsules
    -> one linear map from pose to score, the same for every class

Concurrent routing: the first pass goes up through the layers, each with a uniform coupling. In
every later pass all layers take one step in parallel, each from the layer below and from its own
parents after the previous pass. `num_iters` counts the first pass: the paper's two iterations are
2.

The last passes of lower layers do not reach the output, because a change moves up one layer per
pass. They are skipped, which leaves the scores bit-identical. With two passes only the class
capsules attend.

`num_iters="converged"`: passes until the change is small, at most 30, by Anderson acceleration with
the gradient of the implicit function, so that memory does not grow with passes. Convergence is not
guaranteed; the output's `residual` measures it.
"""

import copy
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.layers import (
    Capsules,
    ConvCaps,
    DenseCaps,
    Normalize,
    PrimaryCaps,
    make_backbone,
    router_with,
)
from torchcaps.layers.stems import conv_out
from torchcaps.models.base import Model, ModelConfig, Output, described, register_output
from torchcaps.models.fields import Count, Iterations, Kernel, SideOrNone, Stride
from torchcaps.models.registry import register
from torchcaps.models.tracing import Passes
from torchcaps.routing import Solver, fixed_point


@dataclass(frozen=True, kw_only=True)
class InvertedConfig(ModelConfig):
    family: ClassVar[str] = "inverted"
    oblong: ClassVar[bool] = True
    backbone: str = "simple"
    """simple (one convolution), resnet, resnet-wide, or timm:NAME."""
    channels: Count = 128
    """Channels of the simple backbone: 128 in the authors' code, 256 in the paper."""
    primary_kernel: Kernel = 1
    """Kernel size of the convolution to primary capsules."""
    primary_stride: Stride = 1
    """Stride of that convolution."""
    num_types: Count = 32
    """Types of capsule at each position."""
    pose_dim: Count = 16
    """Entries of a pose."""
    matrix: bool = True
    """Use square matrices as poses and transforms, instead of vectors with as many entries."""
    kernels: tuple[Kernel, ...] = (3, 3)
    """Window sizes of the convolutional capsule layers."""
    strides: tuple[Stride, ...] = (2, 1)
    """Strides of those windows."""
    grid: SideOrNone = 0
    """Average the primary capsules to grid x grid positions, so that their number does not grow
    with the image. 0: no average."""
    transform: Literal["own", "types"] = "own"
    """Transforms of the first fully connected layer: one per child (own), or one per type, shared
    over positions (types)."""
    dense: tuple[Count, ...] = ()
    """Number of capsules in each fully connected layer before the classes."""
    num_iters: Iterations | Literal["converged"] = 2
    """Routing passes, including the uniform one, or `converged`: passes until convergence."""
    concurrent: bool = True
    """Iterate all layers in parallel, instead of one after the other (ablation B)."""
    norm: bool = True
    """Apply LayerNorm to parents (ablation A: off)."""
    activations: bool = False
    """Scale the pose of each child by an activation, the sigmoid of a linear map of the pose
    (ablation C; the paper uses EM's activations)."""
    scale: bool = True
    """Divide agreement by the square root of the pose size, as in the authors' code."""
    routing: str = "inverted"
    """Routing of every layer; routings other than inverted run one layer after the other."""


@register_output
@dataclass
class InvertedOutput(Output):
    residual: Tensor | None = described("[B]", "change of each image by one more pass")


def _out_side(side: int, window: tuple[int, int]) -> int:
    """Side of the output of a window (kernel, stride)."""
    return conv_out(side, *window)


class Inverted(Model):
    def __init__(self, config: InvertedConfig):
        super().__init__()
        self.config = self.options = c = config
        if c.num_iters != "converged" and c.num_iters < 1:
            raise TorchcapsError(f"num_iters={c.num_iters}: must be at least 1, or 'converged'.")
        self.normalize = Normalize(c.in_channels)
        self.backbone = make_backbone(c.backbone, c.in_channels, c.channels)
        first, *windows = (
            (c.primary_kernel, c.primary_stride),
            *zip(c.kernels, c.strides, strict=True),
        )
        grid = c.sides(lambda side: _out_side(self.backbone.out_side(side), first), c.grid)
        places = prod(max(0, reduce(_out_side, windows, side)) for side in grid)
        self.primary = PrimaryCaps(
            in_channels=self.backbone.out_channels, num_types=c.num_types, out_dim=c.pose_dim,
            kernel_size=c.primary_kernel, stride=c.primary_stride, squash=False, bias=False,
            grid=c.grid,
        )  # fmt: skip
        self.primary_norm = nn.LayerNorm(c.pose_dim) if c.norm else nn.Identity()
        iterations = c.num_iters if isinstance(c.num_iters, int) else 2
        router = router_with(c.routing, num_iters=iterations, norm=c.norm, scale=c.scale)
        self.concurrent = c.concurrent and hasattr(router, "attend")
        layers: list[nn.Module] = []
        for kernel, stride in zip(c.kernels, c.strides, strict=True):
            layers.append(
                ConvCaps(
                    in_caps=c.num_types,
                    in_dim=c.pose_dim,
                    out_caps=c.num_types,
                    out_dim=c.pose_dim,
                    kernel_size=kernel,
                    stride=stride,
                    routing=router,
                    matrix=c.matrix,
                )
            )
        if not places:
            raise TorchcapsError(
                f"{c.image_size} pixels are too few for these windows; use larger images, or "
                "smaller kernels or strides."
            )
        children = places * c.num_types
        shared: bool | int = c.num_types if c.transform == "types" else False
        for parents in (*c.dense, c.num_classes):
            dense = DenseCaps(
                in_caps=children,
                in_dim=c.pose_dim,
                out_caps=parents,
                out_dim=c.pose_dim,
                routing=router,
                shared=shared,
                matrix=c.matrix,
            )
            layers.append(dense)
            children, shared = parents, False
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
        return self.backbone(self.normalize(images))

    def forward_capsules(self, features: Tensor, coupling: bool = False) -> Output:
        primary = Capsules(self.primary_norm(self.primary(features)))
        layers, residual = self.route(primary, coupling)
        logits = self.head(layers[-1].poses).squeeze(-1)
        return InvertedOutput(
            logits, features=features, layers=(primary, *layers), residual=residual
        )

    def route(
        self, primary: Capsules, coupling: bool = False
    ) -> tuple[list[Capsules], Tensor | None]:
        """Route through all layers. primary poses [B,H,W,I,D] -> the layers above, optionally with
        the coupling of the last pass; and the residual if num_iters is "converged".
        """
        if not self.concurrent:
            return self._sequential(primary, coupling), None
        iters, last = self.options.num_iters, len(self.layers) - 1
        if iters == "converged" and torch.compiler.is_exporting():
            raise TorchcapsError(
                "num_iters='converged' depends on the data and cannot be exported. Set a fixed "
                "number of passes, for example num_iters=2."
            )
        passes = 2 if iters == "converged" else iters
        layers = [primary]
        for number in range(len(self.layers)):
            only = coupling and iters != "converged" and last - number > passes - 2
            layers.append(self.attend(number, layers[-1].poses, None, only))
        if iters == "converged":
            return self._converge(layers, coupling)
        for remaining in range(passes - 2, -1, -1):
            previous, layers = layers, list(layers)
            for number in range(max(0, last - remaining), last + 1):
                final = coupling and number == last - remaining
                below, parents = previous[number].poses, previous[number + 1].poses
                layers[number + 1] = self.attend(number, below, parents, final)
        return layers[1:], None

    @torch.no_grad()
    def trace(self, images: Tensor) -> tuple[Passes, ...]:
        """Parents and coupling of every layer after each of its passes.

        Layer n of N takes its pass t in forwards of at least t + N - n passes, so forwards of
        1, 2, … passes return them all.
        """
        iters = self.options.num_iters
        if not self.concurrent:
            return super().trace(images)
        if iters == "converged":
            return tuple((layer,) for layer in self.encode(images, coupling=True).layers[1:])
        traces: list[list[Capsules]] = [[] for _ in self.layers]
        last = len(self.layers) - 1
        for count in range(1, iters + 1):
            other = copy.copy(self)
            other.options = replace(self.options, num_iters=count)
            layers = other.encode(images, coupling=True).layers[1:]
            for number, layer in enumerate(layers):
                if len(traces[number]) < max(1, count - (last - number)):
                    traces[number].append(layer)
        return tuple(map(tuple, traces))

    def attend(
        self, number: int, poses: Tensor, parents: Tensor | None, coupling: bool = False
    ) -> Capsules:
        """One pass of one layer."""
        layer, poses = self.layers[number], self._weighted(poses)
        if isinstance(layer, ConvCaps):
            return layer.attend(poses, parents, layer.window, coupling)
        assert isinstance(layer, DenseCaps)
        return layer.attend(poses.flatten(1, -2), parents, None, coupling)

    def _weighted(self, poses: Tensor) -> Tensor:
        """Poses times their activations; votes are linear in poses, so this weights the votes."""
        return poses if self.active is None else poses * self.active(poses).sigmoid()

    def _sequential(self, primary: Capsules, coupling: bool) -> list[Capsules]:
        """Route one layer after the other."""
        layers, active = [primary], primary.activations
        uses_activations = any(getattr(layer.router, "activations", False) for layer in self.layers)
        if uses_activations and self.active is not None:
            active = self.active(primary.poses).squeeze(-1).sigmoid()
        for layer in self.layers:
            poses = layers[-1].poses if uses_activations else self._weighted(layers[-1].poses)
            layers.append(layer(poses, active, coupling=coupling))
            active = layers[-1].activations
        return layers[1:]

    def _converge(
        self, layers: list[Capsules], coupling: bool
    ) -> tuple[list[Capsules], Tensor | None]:
        """Fixed point of the parents of all layers as one state, starting from the first pass."""
        primary, poses = layers[0], [capsules.poses for capsules in layers[1:]]
        shapes = [p.shape[1:] for p in poses]
        sizes = [shape.numel() for shape in shapes]

        def split(state: Tensor) -> list[Tensor]:
            rows = state.split(sizes, 1)
            return [row.unflatten(1, s) for row, s in zip(rows, shapes, strict=True)]

        def join(poses: list[Tensor]) -> Tensor:
            return torch.cat([p.flatten(1) for p in poses], 1)

        def one_pass(poses: list[Tensor], coupling: bool = False) -> list[Capsules]:
            numbers = range(len(self.layers))
            return [self.attend(n, poses[n], poses[n + 1], coupling) for n in numbers]

        def step(state: Tensor, below: Tensor = primary.poses) -> Tensor:
            return join([c.poses for c in one_pass([below, *split(state)])])

        def alone(state: Tensor) -> Tensor:
            """The same with a gradient to the state alone."""
            learned = [p for p in self.parameters() if p.requires_grad]
            try:
                for p in learned:
                    p.requires_grad_(False)
                return step(state, primary.poses.detach())
            finally:
                for p in learned:
                    p.requires_grad_(True)

        state, residual = fixed_point(step, join(poses), self.solver, alone)
        fixed = split(state)
        if not coupling:
            return [Capsules(p) for p in fixed], residual
        pairs = zip(one_pass([primary.poses, *fixed], True), fixed, strict=True)
        return [capsules._replace(poses=p) for capsules, p in pairs], residual


CIFAR100 = {"pose_dim": 36, "dense": (20,), "num_classes": 100}
MULTI = {
    "channels": 1024, "primary_kernel": 3, "primary_stride": 2, "num_types": 16, "pose_dim": 64,
    "kernels": (3,), "strides": (1,), "image_size": 36,
}  # fmt: skip
COLOR = {"in_channels": 3, "image_size": 32}

for name, fields, summary in (
    ("inverted-simple", COLOR, "inverted attention on one convolution (Tsai et al. 2020)"),
    ("inverted-small", {"num_types": 16, "primary_stride": 2, "num_iters": 3},
     "small inverted attention model for CPUs"),
    ("inverted-resnet", {**COLOR, "backbone": "resnet"}, "inverted attention on residual blocks"),
    ("inverted-simple-100", {**COLOR, **CIFAR100},
     "inverted attention on one convolution, for CIFAR-100"),
    ("inverted-resnet-100", {**COLOR, **CIFAR100, "backbone": "resnet"},
     "inverted attention on residual blocks, for CIFAR-100"),
    ("inverted-multi", {**MULTI, "matrix": False}, "inverted attention, 64-d poses, two digits"),
    ("inverted-multi-matrix", MULTI, "inverted attention, 8x8 poses, two digits"),
    ("inverted-multi-matrix-42m", {**MULTI, "num_types": 64},
     "inverted attention, 8x8 poses of 64 types, two digits"),
    ("dynamic-multi", {**MULTI, "matrix": False, "routing": "dynamic", "num_iters": 3},
     "dynamic routing, 64-d poses, two digits"),
):  # fmt: skip
    of_a_table = name.endswith("-100") or "-multi" in name
    config = InvertedConfig(**fields)  # pyright: ignore
    register(name, Inverted, config, summary, listed=not of_a_table)
