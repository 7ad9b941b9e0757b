"""Dynamic routing (Sabour, Frosst, Hinton: Dynamic Routing Between Capsules, 2017).

    vote_ij = pose_i W_ij               coupling_i = softmax over parents j of b_i
    s_j     = sum_i coupling_ij vote_ij          v_j = squash(s_j)
    b_ij   += <vote_ij, v_j>            T times; the last v is the parent

Differs from the paper: nothing in the formula; b starts at zero, and gradients flow through every
iteration (as in the authors' code). `squash=False` leaves s as it is (an ablation of `robustness`).
"""

from typing import Literal

import torch
from torch import Tensor

from torchcaps.errors import TorchcapsError
from torchcaps.functional import squash as squash_vectors

Impl = Literal["auto", "reference", "triton"]


def dynamic_routing_reference(
    poses: Tensor, weight: Tensor, num_iters: int = 3, squash: bool = True
) -> tuple[Tensor, Tensor]:
    """The formula as one reads it: votes are written to memory.

    poses [B,I,D], weight [I,J,D,E] or [1,J,D,E] (shared) -> poses [B,J,E], coupling [B,I,J]
    """
    if num_iters < 1:
        raise TorchcapsError(f"num_iters={num_iters}: routing needs at least one iteration.")
    batch, in_caps, _ = poses.shape
    votes = torch.einsum("bid,ijde->bije", poses, weight.expand(in_caps, -1, -1, -1))

    def iterate(logits: Tensor) -> tuple[Tensor, Tensor]:
        coupling = logits.softmax(-1)
        parents = torch.einsum("bij,bije->bje", coupling, votes)
        return squash_vectors(parents) if squash else parents, coupling

    logits = poses.new_zeros(batch, in_caps, weight.shape[1])
    parents, coupling = iterate(logits)
    for _ in range(num_iters - 1):
        logits = logits + torch.einsum("bije,bje->bij", votes, parents)
        parents, coupling = iterate(logits)
    return parents, coupling


def dynamic_routing(
    poses: Tensor, weight: Tensor, num_iters: int = 3, squash: bool = True, *, impl: Impl = "auto"
) -> tuple[Tensor, Tensor]:
    """Dynamic routing by the best implementation for these tensors.

    poses [B,I,D], weight [I,J,D,E] or [1,J,D,E] (shared) -> poses [B,J,E], coupling [B,I,J]
    """
    if impl == "triton":
        raise TorchcapsError("Dynamic routing has no Triton kernel yet; use impl='auto'.")
    return dynamic_routing_reference(poses, weight, num_iters, squash)
