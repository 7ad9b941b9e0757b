"""No routing: every child gives each of the J parents the same share (`robustness`: "NoR").

    s_j = sum_i vote_ij / J        v_j = squash(s_j)

It is one iteration of dynamic routing. Differs from the paper: nothing; the paper prints no formula
for it, and 1/J is what dynamic routing starts with.
"""

import torch
from torch import Tensor

from torchcaps.errors import TorchcapsError
from torchcaps.functional import squash as squash_vectors
from torchcaps.routing.dynamic import Impl


def uniform_routing_reference(
    poses: Tensor, weight: Tensor, squash: bool = True
) -> tuple[Tensor, Tensor]:
    """The sum is linear, so no vote is ever formed.

    poses [B,I,D], weight [I,J,D,E] or [1,J,D,E] (shared) -> poses [B,J,E], coupling [B,I,J]
    """
    batch, in_caps, _ = poses.shape
    out_caps = weight.shape[1]
    if weight.shape[0] == 1:
        summed = torch.einsum("bd,jde->bje", poses.sum(1), weight[0])
    else:
        summed = torch.einsum("bid,ijde->bje", poses, weight)
    parents = summed / out_caps
    coupling = poses.new_full((1, 1, 1), 1 / out_caps).expand(batch, in_caps, out_caps)
    return (squash_vectors(parents) if squash else parents), coupling


def uniform_routing(
    poses: Tensor, weight: Tensor, num_iters: int = 1, squash: bool = True, *, impl: Impl = "auto"
) -> tuple[Tensor, Tensor]:
    """Uniform coupling; `num_iters` is there for the other routings and changes nothing.

    poses [B,I,D], weight [I,J,D,E] or [1,J,D,E] (shared) -> poses [B,J,E], coupling [B,I,J]
    """
    del num_iters
    if impl == "triton":
        raise TorchcapsError("Uniform routing is one matrix product and needs no kernel.")
    return uniform_routing_reference(poses, weight, squash)
