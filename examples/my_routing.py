"""A routing of your own, in a file of its own.

The formula and the class are all it takes: layers, models, training, reports and the command line
find the routing by its name.

    torchcaps train demo/capsnet --model.routing sharp --plugin examples/my_routing.py --out run
    torchcaps eval run --plugin examples/my_routing.py
    torchcaps report run --plugin examples/my_routing.py
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchcaps.functional import squash
from torchcaps.layers import Capsules, ConvCaps, DenseCaps, Router, register_router
from torchcaps.routing import Impl, Window, by_rows, form_votes


def sharp_routing(poses: Tensor, weight: Tensor, sharpness: float) -> tuple[Tensor, Tensor]:
    """One pass: children prefer the parents that their votes are long for.

        c_ij = softmax_j (sharpness |v_ij|)      pose_j = squash(sum_i c_ij v_ij)

    poses [B,I,D], weight [I,J,D,E] -> poses [B,J,E], coupling [B,I,J]
    """
    votes = form_votes(poses, weight)
    coupling = (sharpness * votes.norm(dim=-1)).softmax(-1)
    return squash(torch.einsum("bij,bije->bje", coupling, votes)), coupling


@register_router("sharp")
@dataclass(frozen=True, kw_only=True)
class Sharp(Router):
    """One pass, by the length of the votes."""

    sharpness: float = 2.0
    function = sharp_routing

    def __call__(
        self,
        layer: Any,
        poses: Tensor,
        activations: Tensor | None,
        weight: Tensor,
        *,
        window: Window | None,
        coupling: bool,
        impl: Impl,
    ) -> Capsules:
        def route(poses: Tensor, weight: Tensor, *_: None) -> tuple[Tensor, ...]:
            return sharp_routing(poses, weight, self.sharpness)

        # dense and convolutional, a few images at a time, so that the votes fit into memory
        parents, shares = by_rows(route, poses, weight, window, coupling=coupling)
        return Capsules(parents, None, shares)


if __name__ == "__main__":
    dense = DenseCaps(in_caps=6, in_dim=4, out_caps=3, out_dim=5, routing="sharp")
    print(dense, dense(torch.rand(2, 6, 4)).poses.shape)
    conv = ConvCaps(
        in_caps=2, in_dim=4, out_caps=3, out_dim=5, kernel_size=3, routing=Sharp(sharpness=4.0)
    )
    print(conv, conv(torch.rand(2, 7, 7, 2, 4)).poses.shape)
