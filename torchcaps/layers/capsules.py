"""Capsule layers: dense, convolutional, pointwise, primary and class capsules."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchcaps.errors import TorchcapsError
from torchcaps.functional import bounded_gradient, exact, squash
from torchcaps.layers.routers import Capsules, Router, Sizes, make_router
from torchcaps.routing import Impl, Window, add_coordinates
from torchcaps.routing.self import EPS, route_logits


class RoutedCaps(nn.Module):
    """Base of the routed layers: transforms of the children, and a router.

    sizes.num_transforms: child i uses transform i modulo this number.
    """

    def __init__(
        self,
        sizes: Sizes,
        routing: str | Router,
        *,
        matrix: bool = False,
        coordinates: bool | Literal["first"] = False,
        impl: Impl = "auto",
    ):
        super().__init__()
        self.router = make_router(routing)
        self.sizes, self.matrix, self.coordinates = sizes, matrix, coordinates
        self.impl: Impl = impl
        if coordinates and not self.router.coordinates:
            raise TorchcapsError(
                f"{self.router.name.capitalize()}-routing scores the pose itself and takes no "
                "coordinates. Give coordinates=False."
            )
        shape = (sizes.columns, sizes.columns) if matrix else (sizes.in_dim, sizes.out_dim)
        self.weight = nn.Parameter(torch.empty(sizes.num_transforms, sizes.out_caps, *shape))
        self.router.start(self.weight, sizes)
        for name, parameter in self.router.parts(sizes).items():
            setattr(self, name, parameter)

    def extra_repr(self) -> str:
        s = self.sizes
        text = f"{s.in_caps} of {s.in_dim} -> {s.out_caps} of {s.out_dim}, {self.router}"
        if s.num_transforms != s.in_caps:
            text += f", {s.num_transforms} shared transforms"
        text += ", matrix" if self.matrix else ""
        return text + (", coordinates" if self.coordinates else "")

    def _common(self, window: Window | None, coupling: bool) -> dict[str, Any]:
        return {"window": window, "coupling": coupling, "impl": self.impl}

    def _check(self, poses: Tensor, window: Window | None) -> None:
        if window is None:
            children = poses.shape[1:-1].numel()
        else:
            children = poses.shape[-2] * window.kernel**2
        if window is None and self.sizes.num_transforms < self.sizes.in_caps:
            # shared over positions: a grid of any size
            fits = children > 0 and children % self.sizes.num_transforms == 0
        else:
            fits = children == self.sizes.in_caps
        if not fits:
            raise TorchcapsError(
                f"{type(self).__name__} was made for {self.sizes.in_caps} children per parent; "
                f"poses {list(poses.shape)} have {children}."
            )

    def attend(
        self,
        poses: Tensor,
        parents: Tensor | None,
        window: Window | None = None,
        coupling: bool = False,
    ) -> Capsules:
        """One pass of inverted attention from the parents of the previous pass; None: the first.

        Shapes as in `route`, parents as its output. For layers that iterate concurrently.
        """
        attend = getattr(self.router, "attend", None)
        if attend is None:
            raise TorchcapsError(
                f"{self.router.name} routing has no passes that layers can share. Use inverted."
            )
        return attend(self, poses, parents, **self._common(window, coupling))

    def route(
        self,
        poses: Tensor,
        activations: Tensor | None,
        window: Window | None,
        coupling: bool,
        gain: Tensor | None = None,
    ) -> Capsules:
        """Route children to parents.

        poses [B,I,D] or [B,H,W,I,D] with a window, activations [B,I] or [B,H,W,I]. With
        coordinates a dense layer needs the grid, [B,H,W,I,D].
        """
        self._check(poses, window)
        weight = self.weight
        if self.coordinates:
            if poses.dim() != 5:
                raise TorchcapsError(
                    f"Coordinates need a grid [B,H,W,I,D]; got {list(poses.shape)}."
                )
            to = "first" if self.coordinates == "first" else "column"
            poses, weight = add_coordinates(poses, weight, to=to)
        if window is None and poses.dim() == 5:
            poses = poses.flatten(1, 3)
            activations = None if activations is None else activations.flatten(1)
        if self.router.activations and activations is None:
            raise TorchcapsError(f"{self.router.name} routing needs the children's activations.")
        options = self._common(window, coupling)
        if gain is not None:
            options["gain"] = gain
        return self.router(self, poses, activations, weight, **options)


def layer_sizes(
    in_caps: int, in_dim: int, out_caps: int, out_dim: int, num_transforms: int, matrix: bool
) -> Sizes:
    """Sizes of a layer; raises if matrix poses are not square or change their size."""
    side = math.isqrt(in_dim)
    if matrix and (side * side != in_dim or in_dim != out_dim):
        raise TorchcapsError(
            f"Matrix poses are square and keep their size; got in_dim={in_dim}, out_dim={out_dim}."
        )
    columns = side if matrix else in_dim
    return Sizes(in_caps, in_dim, out_caps, out_dim, num_transforms, columns)


class DenseCaps(RoutedCaps):
    """Every child votes for every parent. poses [B,I,D] or [B,H,W,I,D] -> poses [B,J,E]

    shared: use one transform for all children instead of one each; or a number of types, each with
    one transform for all positions of a grid. A layer with shared transforms takes a grid of any
    size. matrix: use square matrices as poses instead of vectors. coordinates: add the child's
    position on the grid to its votes, to the last column of matrices; "first": to their first row.

    >>> layer = DenseCaps(in_caps=6, in_dim=4, out_caps=3, out_dim=5, routing="dynamic")
    >>> layer(torch.rand(2, 6, 4), coupling=True)
    Capsules(poses=[2,3,5], coupling=[2,6,3])
    """

    letters = "[B,I,D] -> [B,J,E]"

    def __init__(
        self,
        *,
        in_caps: int,
        in_dim: int,
        out_caps: int,
        out_dim: int,
        routing: str | Router = "dynamic",
        shared: bool | int = False,
        matrix: bool = False,
        coordinates: bool | Literal["first"] = False,
        impl: Impl = "auto",
    ):
        num = in_caps if shared is False else int(shared)
        sizes = layer_sizes(in_caps, in_dim, out_caps, out_dim, num, matrix)
        super().__init__(sizes, routing, matrix=matrix, coordinates=coordinates, impl=impl)

    def forward(
        self,
        poses: Tensor,
        activations: Tensor | None = None,
        *,
        coupling: bool = False,
        gain: Tensor | None = None,
    ) -> Capsules:
        """gain [J]: factor of the couplings of each parent (dynamic routing only)."""
        return self.route(poses, activations, None, coupling, gain)


class ConvCaps(RoutedCaps):
    """Every parent sees a window of the grid below.

    poses [B,H,W,I,D], activations [B,H,W,I] -> poses [B,H',W',J,E], activations [B,H',W',J]

    in_caps and out_caps: capsule types at each position. shared: use one transform for the whole
    window instead of one per position and type. Other options as in `DenseCaps`.

    >>> layer = ConvCaps(in_caps=2, in_dim=4, out_caps=3, out_dim=5, kernel_size=3, stride=2)
    >>> layer(torch.rand(2, 7, 7, 2, 4))
    Capsules(poses=[2,3,3,3,5])
    """

    letters = "[B,H,W,I,D] -> [B,H,W,J,E]"

    def __init__(
        self,
        *,
        in_caps: int,
        in_dim: int,
        out_caps: int,
        out_dim: int,
        kernel_size: int = 3,
        stride: int = 1,
        padding: int = 0,
        routing: str | Router = "dynamic",
        shared: bool = False,
        matrix: bool = False,
        coordinates: bool | Literal["first"] = False,
        impl: Impl = "auto",
    ):
        children = kernel_size**2 * in_caps
        num = 1 if shared else children
        sizes = layer_sizes(children, in_dim, out_caps, out_dim, num, matrix)
        super().__init__(sizes, routing, matrix=matrix, coordinates=coordinates, impl=impl)
        self.window = Window(kernel_size, stride, padding)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.window}"

    def forward(
        self, poses: Tensor, activations: Tensor | None = None, *, coupling: bool = False
    ) -> Capsules:
        return self.route(poses, activations, self.window, coupling)


class PointwiseCaps(RoutedCaps):
    """Routing within each position of a flattened map, which may omit positions.

    poses [B,L,I,D], activations [B,L,I] -> poses [B,L,J,E], activations [B,L,J]

    >>> layer = PointwiseCaps(in_caps=6, in_dim=4, out_caps=3, out_dim=5)
    >>> layer(torch.rand(2, 9, 6, 4))
    Capsules(poses=[2,9,3,5])
    """

    letters = "[B,L,I,D] -> [B,L,J,E]"

    def __init__(
        self,
        *,
        in_caps: int,
        in_dim: int,
        out_caps: int,
        out_dim: int,
        routing: str | Router = "dynamic",
        matrix: bool = False,
        impl: Impl = "auto",
    ):
        sizes = layer_sizes(in_caps, in_dim, out_caps, out_dim, in_caps, matrix)
        super().__init__(sizes, routing, matrix=matrix, impl=impl)

    def forward(
        self, poses: Tensor, activations: Tensor | None = None, *, coupling: bool = False
    ) -> Capsules:
        rows = None if activations is None else activations.flatten(0, 1)
        parents, active, shares = self.route(poses.flatten(0, 1), rows, None, coupling)
        grid = poses.shape[:2]
        return Capsules(
            parents.unflatten(0, grid),
            None if active is None else active.unflatten(0, grid),
            None if shares is None else shares.unflatten(0, grid),
        )


class PrimaryCaps(nn.Module):
    """Convolution to I capsule types per position. features [B,C,H,W] -> poses [B,H',W',I,D]

    A pose is D channels at one position: the channel axis is split and moved last. scale: factor
    of the convolution's sums, before the bias. grid: average the maps to grid x grid positions, so
    that the number of capsules does not grow with the image; 0: leave them as they are.

    >>> layer = PrimaryCaps(in_channels=8, num_types=2, out_dim=4, kernel_size=9, stride=2)
    >>> layer(torch.rand(2, 8, 20, 20)).shape
    torch.Size([2, 6, 6, 2, 4])
    """

    letters = "[B,C,H,W] -> [B,H,W,I,D]"

    def __init__(
        self,
        *,
        in_channels: int,
        num_types: int,
        out_dim: int,
        kernel_size: int,
        stride: int,
        squash: bool = True,
        bias: bool = True,
        scale: float = 1.0,
        grid: int = 0,
    ):
        super().__init__()
        self.grid = grid
        self.num_types, self.out_dim, self.squash, self.scale = num_types, out_dim, squash, scale
        self.conv = nn.Conv2d(in_channels, num_types * out_dim, kernel_size, stride, bias=bias)

    def forward(self, features: Tensor) -> Tensor:
        conv = self.conv
        if self.scale == 1:
            maps = conv(features)
        else:  # scale the weights, which are fewer than the sums
            maps = F.conv2d(features, conv.weight * self.scale, conv.bias, conv.stride)
        if self.grid:
            maps = F.adaptive_avg_pool2d(maps, self.grid)
        maps = maps.unflatten(1, (self.num_types, self.out_dim))
        poses = maps.permute(0, 3, 4, 1, 2)
        return squash(poses) if self.squash else poses


class ClassCaps(nn.Module):
    """Self-routing of activations to classes at each position, without poses.

    poses [B,L,I,D], activations [B,L,I] -> share of the activation of each class [B,L,Y]

    The last layer of self-routing; it has no transforms because class poses are not used.
    """

    letters = "[B,L,I,D] -> [B,L,J]"

    def __init__(self, *, in_caps: int, in_dim: int, num_classes: int, route_std: float = 0.01):
        super().__init__()
        # small instead of the authors' zeros: the layers below have a gradient from the first step
        self.route_weight = nn.Parameter(route_std * torch.randn(in_caps, in_dim, num_classes))
        self.route_bias = nn.Parameter(torch.zeros(in_caps, num_classes))

    def extra_repr(self) -> str:
        children, dim, classes = self.route_weight.shape
        return f"{children} of {dim} -> {classes} without poses, self-routing"

    def forward(self, poses: Tensor, activations: Tensor, *, coupling: bool = False) -> Capsules:
        logits = route_logits(poses.flatten(0, 1), self.route_weight)  # [B*L,1,Y,I]
        logits = logits.unflatten(0, poses.shape[:2]).squeeze(2)
        shares = (exact(logits) + self.route_bias.mT).softmax(2)
        active = exact(bounded_gradient(activations))[:, :, None]
        activations = (shares * active).sum(3) / (active.sum(3) + EPS)
        no_poses: Any = None
        return Capsules(no_poses, activations, shares.mT if coupling else None)
