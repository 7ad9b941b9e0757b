"""Convolutional capsules: every parent sees a window of the grid below."""

from torch import Tensor

from torchcaps.layers.routed import RoutedCaps, layer_sizes
from torchcaps.layers.routers import Capsules, Router
from torchcaps.routing import Impl, Window


class ConvCaps(RoutedCaps):
    """Every parent sees a window of the grid below.

    poses [B,H,W,I,D], activations [B,H,W,I] -> poses [B,H',W',J,E], activations [B,H',W',J]

    in_caps and out_caps are types of capsule at each position. shared: one transform for the whole
    window, in place of one for each position and type. Other options as in `DenseCaps`.
    """

    letters = "[B,H,W,I,D] -> [B,H,W,J,E]"

    def __init__(
        self,
        in_caps: int,
        in_dim: int,
        out_caps: int,
        out_dim: int,
        kernel_size: int = 3,
        stride: int = 1,
        padding: int = 0,
        *,
        routing: str | Router = "dynamic",
        shared: bool = False,
        matrix: bool = False,
        coordinates: bool = False,
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
    """Routing inside each position alone, on a flattened map (so positions may be left out).

    poses [B,L,I,D], activations [B,L,I] -> poses [B,L,J,E], activations [B,L,J]
    """

    letters = "[B,L,I,D] -> [B,L,J,E]"

    def __init__(
        self,
        in_caps: int,
        in_dim: int,
        out_caps: int,
        out_dim: int,
        *,
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
