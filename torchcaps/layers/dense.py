"""Fully connected capsules."""

from torch import Tensor

from torchcaps.layers.routed import RoutedCaps, layer_sizes
from torchcaps.layers.routers import Capsules, Router
from torchcaps.routing import Impl


class DenseCaps(RoutedCaps):
    """Every child votes for every parent. poses [B,I,D] or [B,H,W,I,D] -> poses [B,J,E]

    shared: one transform for all children, in place of one for each; or a number of types, which
    share one over the positions of a grid. matrix: poses are square matrices, in place of vectors.
    coordinates: votes carry where their child stands, on a grid.
    """

    letters = "[B,I,D] -> [B,J,E]"

    def __init__(
        self,
        in_caps: int,
        in_dim: int,
        out_caps: int,
        out_dim: int,
        *,
        routing: str | Router = "dynamic",
        shared: bool | int = False,
        matrix: bool = False,
        coordinates: bool = False,
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
        """gain [J]: factors of the couplings of each parent, which dynamic routing takes."""
        return self.route(poses, activations, None, coupling, gain)
