"""Fully connected capsules."""

from typing import Any

from torch import Tensor

from torchcaps.layers.routed import Capsules, RoutedCaps


class DenseCaps(RoutedCaps):
    """Every child votes for every parent. poses [B,I,D] or [B,H,W,I,D] -> poses [B,J,E]

    shared: one transform for all children, in place of one for each; or a number of types, which
    share one over the positions of a grid. Other options: see `RoutedCaps`.
    """

    letters = "[B,I,D] -> [B,J,E]"

    def __init__(
        self,
        in_caps: int,
        in_dim: int,
        out_caps: int,
        out_dim: int,
        *,
        shared: bool | int = False,
        **options: Any,
    ):
        num = in_caps if shared is False else int(shared)
        super().__init__(in_caps, in_dim, out_caps, out_dim, num, **options)

    def forward(
        self, poses: Tensor, activations: Tensor | None = None, *, coupling: bool = False
    ) -> Capsules:
        return self.route(poses, activations, None, coupling)
