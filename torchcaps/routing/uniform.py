"""Uniform routing: every child gives each of the J parents the same share (`robustness`: "NoR").

    s_j = sum_i vote_ij / J        v_j = squash(s_j)

It is one iteration of dynamic routing. The paper prints no formula; 1/J is the initial coupling of
dynamic routing.
"""

import torch
from torch import Tensor

from torchcaps.functional import in_float
from torchcaps.functional import squash as squash_vectors
from torchcaps.routing.step import MEMORY_BUDGET, FusedStep, Impl, by_rows, use_kernel
from torchcaps.routing.window import Window


def uniform_routing_reference(
    poses: Tensor, weight: Tensor, squash: bool = True
) -> tuple[Tensor, Tensor]:
    """Uniform routing by the formula above. The sum is linear, so it needs no votes.

    poses [B,I,D], weight [I,J,D,E] -> poses [B,J,E], coupling [B,I,J]

    >>> poses, weight = torch.rand(2, 6, 4), torch.rand(6, 3, 4, 5)
    >>> uniform_routing_reference(poses, weight)[0].shape
    torch.Size([2, 3, 5])
    """
    batch, in_caps, dim = poses.shape
    num, out_caps, in_dim, _ = weight.shape
    rows = poses.reshape(batch, in_caps // num, num, dim // in_dim, in_dim).sum(1)
    summed = torch.einsum("bipd,ijde->bjpe", rows, weight).flatten(2)
    parents = in_float(summed) / out_caps
    coupling = poses.new_full((1, 1, 1), 1 / out_caps).expand(batch, in_caps, out_caps)
    return (squash_vectors(parents) if squash else parents), coupling


def uniform_routing(
    poses: Tensor,
    weight: Tensor,
    num_iters: int = 1,
    squash: bool = True,
    *,
    window: Window | None = None,
    coupling: bool = True,
    impl: Impl = "auto",
    budget: int = MEMORY_BUDGET,
) -> tuple[Tensor, Tensor | None]:
    """Uniform routing; accepts and ignores `num_iters`, for the signature of the other routings.

    Shapes and the other arguments as in `dynamic_routing`.

    >>> poses, weight = torch.rand(2, 6, 4), torch.rand(6, 3, 4, 5)
    >>> uniform_routing(poses, weight)[0].shape
    torch.Size([2, 3, 5])
    """
    del num_iters
    shared = weight.shape[0] == 1 and window is None  # a sum and one small product
    fused = use_kernel(impl, poses, weight, window)
    if not fused or (shared and impl != "triton"):

        def route(poses: Tensor, weight: Tensor, *_: None) -> tuple[Tensor, ...]:
            return uniform_routing_reference(poses, weight, squash)

        return by_rows(route, poses, weight, window, budget, coupling=coupling)
    step = FusedStep(poses, weight, window=window)
    sums = step.sums("uniform", coupling=coupling)
    parents = squash_vectors(sums.votes) if squash else sums.votes
    return parents.to(step.dtype), sums.coupling
