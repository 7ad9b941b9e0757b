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
the passes to converge; `residual` says how near they came.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError
from torchcaps.layers import ConvCaps, DenseCaps, Normalise, PrimaryCaps, make_backbone
from torchcaps.layers.stem import conv_out
from torchcaps.models.base import CapsuleModel, ModelConfig, Output
from torchcaps.models.registry import register
from torchcaps.routing import Solver, fixed_point


@dataclass(frozen=True)
class InvertedConfig(ModelConfig):
    family: ClassVar[str] = "inverted"
    backbone: str = "simple"
    """simple (one convolution), resnet, resnet-wide, or timm:NAME."""
    channels: int = 128
    """Of the simple backbone: 128 in the authors' code, 256 in the paper."""
    primary_kernel: int = 1
    primary_stride: int = 1
    num_types: int = 32
    pose_dim: int = 16
    matrix: bool = True
    """Square matrices as poses and transforms, or vectors of as many entries."""
    kernels: tuple[int, ...] = (3, 3)
    """Of the layers of convolutional capsules."""
    strides: tuple[int, ...] = (2, 1)
    dense: tuple[int, ...] = ()
    """Capsules of fully connected layers before the classes."""
    num_iters: int | Literal["converged"] = 2
    concurrent: bool = True
    """All layers iterate at once; else one after the other (ablation B)."""
    norm: bool = True
    """LayerNorm of parents (ablation A: without)."""
    activations: bool = False
    """Children count by an activation (ablation C): the sigmoid of a linear map of the pose, which
    scales the pose. The paper has EM's activations."""
    scale: bool = True
    """Agreement divided by the square root of the pose's size, as in the authors' code."""
    routing: Literal["inverted", "dynamic"] = "inverted"


class Inverted(CapsuleModel):
    residual: Tensor | None
    """Of the last images routed to a fixed point: how much one more pass would change each."""

    def __init__(self, config: InvertedConfig):
        super().__init__()
        self.config = self.options = c = config
        if c.num_iters != "converged" and c.num_iters < 1:
            raise TorchcapsError(f"num_iters={c.num_iters}: there is at least the first pass.")
        self.normalise = Normalise(c.in_channels)
        self.backbone = make_backbone(c.backbone, c.in_channels, c.channels)
        side = conv_out(self.backbone.out_side(c.image_size), c.primary_kernel, c.primary_stride)
        self.primary = PrimaryCaps(
            self.backbone.out_channels, c.num_types, c.pose_dim,
            c.primary_kernel, c.primary_stride, squash=False, bias=False,
        )  # fmt: skip
        self.primary_norm = nn.LayerNorm(c.pose_dim) if c.norm else nn.Identity()
        iterations = c.num_iters if isinstance(c.num_iters, int) else 2
        options = {"routing": c.routing, "matrix": c.matrix, "norm": c.norm, "scale": c.scale}
        layers: list[nn.Module] = []
        for kernel, stride in zip(c.kernels, c.strides, strict=True):
            layers.append(
                ConvCaps(
                    c.num_types, c.pose_dim, c.num_types, c.pose_dim, kernel, stride,
                    num_iters=iterations, **options,
                )
            )  # fmt: skip
            side = conv_out(side, kernel, stride)
        if side < 1:
            raise TorchcapsError(f"{c.image_size} pixels are too few for these windows.")
        children = side * side * c.num_types
        for parents in (*c.dense, c.num_classes):
            dense = DenseCaps(
                children, c.pose_dim, parents, c.pose_dim, num_iters=iterations, **options
            )
            layers.append(dense)
            children = parents
        self.layers = nn.ModuleList(layers)
        self.active = nn.Linear(c.pose_dim, 1) if c.activations else None
        self.head = nn.Linear(c.pose_dim, 1)
        self.solver, self.residual = Solver(), None
        self.decoder = None

    def forward(
        self,
        images: Tensor,
        labels: Tensor | None = None,
        *,
        coupling: bool = False,
        reconstruct: bool = True,
    ) -> Output:
        features = self.backbone(self.normalise(images))
        primary = self.primary_norm(self.primary(features))
        capsules, shares = self.route(primary, coupling)
        return Output(
            logits=self.head(capsules).squeeze(-1),
            features=features,
            primary=primary.flatten(1, 3),
            coupling=shares,
            capsules=capsules,
        )

    def route(self, primary: Tensor, coupling: bool = False) -> tuple[Tensor, Tensor | None]:
        """primary [B,H,W,I,D] -> class capsules [B,J,E], and where the last pass sent children."""
        iters, last = self.options.num_iters, len(self.layers) - 1
        if self.options.routing == "dynamic" or not self.options.concurrent:
            return self._one_layer_after_the_other(primary, coupling)
        poses: list[Tensor] = [primary]
        shares = None
        for number in range(len(self.layers)):
            parents, shares = self.attend(number, poses[-1], None, coupling and number == last)
            poses.append(parents)
        if iters == "converged":
            poses = self._converge(poses)
            return self.attend(last, poses[-2], poses[-1], coupling) if coupling else (
                poses[-1], None
            )  # fmt: skip
        for left in range(iters - 2, -1, -1):  # passes after this one
            before, poses = poses, list(poses)
            for number in range(max(0, last - left), last + 1):
                wanted = coupling and number == last and not left
                parents, shares = self.attend(number, before[number], before[number + 1], wanted)
                poses[number + 1] = parents
        return poses[-1], shares

    def attend(
        self, number: int, poses: Tensor, parents: Tensor | None, coupling: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """One pass of one layer."""
        layer, poses = self.layers[number], self._weighed(poses)
        if isinstance(layer, ConvCaps):
            return layer.attend(poses, parents, layer.window, coupling)
        assert isinstance(layer, DenseCaps)
        return layer.attend(poses.flatten(1, -2), parents, None, coupling)

    def _weighed(self, poses: Tensor) -> Tensor:
        """Votes are linear in poses, so a child that counts half has half a pose."""
        return poses if self.active is None else poses * self.active(poses).sigmoid()

    def _one_layer_after_the_other(
        self, poses: Tensor, coupling: bool
    ) -> tuple[Tensor, Tensor | None]:
        shares = None
        for number, layer in enumerate(self.layers):
            wanted = coupling and number == len(self.layers) - 1
            poses, _, shares = layer(self._weighed(poses), coupling=wanted)
        return poses, shares

    def _converge(self, poses: list[Tensor]) -> list[Tensor]:
        """All layers' parents as one state, from those of the first pass to a fixed point."""
        primary, shapes = poses[0], [p.shape[1:] for p in poses[1:]]
        sizes = [shape.numel() for shape in shapes]

        def split(state: Tensor) -> list[Tensor]:
            parts = state.split(sizes, 1)
            return [p.unflatten(1, s) for p, s in zip(parts, shapes, strict=True)]

        def join(parts: list[Tensor]) -> Tensor:
            return torch.cat([p.flatten(1) for p in parts], 1)

        def step(state: Tensor) -> Tensor:
            below = [primary, *split(state)]
            moved = [self.attend(n, below[n], below[n + 1])[0] for n in range(len(self.layers))]
            return join(moved)

        found, self.residual = fixed_point(step, join(poses[1:]), self.solver)
        return [primary, *split(found)]


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
