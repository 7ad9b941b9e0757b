"""Fully connected capsules."""

from typing import Literal

import torch
from torch import Tensor, nn

from torchcaps.routing import dynamic_routing, uniform_routing
from torchcaps.routing.dynamic import Impl

Routing = Literal["dynamic", "uniform"]


class DenseCaps(nn.Module):
    """Every child votes for every parent. poses [B,I,D] -> poses [B,J,E], coupling [B,I,J]

    `shared`: one transform for all children, in place of one for each.
    """

    letters = "[B,I,D] -> [B,J,E]"

    def __init__(
        self,
        in_caps: int,
        in_dim: int,
        out_caps: int,
        out_dim: int,
        *,
        routing: Routing = "dynamic",
        num_iters: int = 3,
        shared: bool = False,
        squash: bool = True,
        impl: Impl = "auto",
    ):
        super().__init__()
        self.num_iters, self.squash = num_iters, squash
        self.impl: Impl = impl
        self.route = uniform_routing if routing == "uniform" else dynamic_routing
        self.weight = nn.Parameter(torch.empty(1 if shared else in_caps, out_caps, in_dim, out_dim))
        # Own transforms point anywhere, so their votes cancel; with a shared one they add up, and
        # at the same scale every parent would start saturated and never learn.
        nn.init.normal_(self.weight, std=0.1 / in_caps**0.5 if shared else 0.1)

    def forward(self, poses: Tensor) -> tuple[Tensor, Tensor]:
        return self.route(poses, self.weight, self.num_iters, self.squash, impl=self.impl)
