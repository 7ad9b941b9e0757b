"""Dynamic routing (Sabour, Frosst, Hinton: Dynamic Routing Between Capsules, 2017).

    vote_ij = pose_i W_ij               coupling_i = softmax over parents j of b_i
    s_j     = sum_i coupling_ij vote_ij + bias_j       v_j = squash(s_j)
    b_ij   += <vote_ij, v_j>            T times; the last v is the parent

Differs from the paper: not in the formula; b starts at zero, and gradients flow through every
iteration (as in the authors' code). `squash=False` skips the squash (an ablation of `robustness`);
`bias` is an option of the authors' code; `gain` multiplies the couplings of each parent in every
iteration (an ablation of `sparse`).

b_ij is the sum of <vote_ij, v_j> over iterations, which equals <vote_ij, sum of v_j>: the kernel
keeps the running sum of parents instead of a table of logits.
"""

import torch
from torch import Tensor

from torchcaps.errors import TorchcapsError
from torchcaps.functional import in_float
from torchcaps.functional import squash as squash_vectors
from torchcaps.routing.step import MEMORY_BUDGET, FusedStep, Impl, by_rows, use_kernel
from torchcaps.routing.window import Window, form_votes


def dynamic_routing_reference(
    poses: Tensor,
    weight: Tensor,
    num_iters: int = 3,
    squash: bool = True,
    *,
    bias: Tensor | None = None,
    gain: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Dynamic routing by the formula above; stores all votes.

    poses [B,I,D], weight [I,J,D,E], bias [J,E], gain [J] -> poses [B,J,E], coupling [B,I,J]

    >>> poses, weight = torch.rand(2, 6, 4), torch.rand(6, 3, 4, 5)
    >>> dynamic_routing_reference(poses, weight)[0].shape
    torch.Size([2, 3, 5])
    """
    check_iterations(num_iters)
    # parents before children: sums over children then read memory in order, a third faster on CPU
    votes = form_votes(poses, weight).transpose(1, 2).contiguous()
    logits = votes.new_zeros(votes.shape[:3])
    parents = coupling = votes
    for t in range(num_iters):
        if t > 0:
            logits = logits + torch.einsum("bjie,bje->bji", votes, parents)
        coupling = logits.softmax(1)
        parents = in_float(torch.einsum("bji,bjie->bje", coupling, votes))
        parents = parents if gain is None else parents * gain[:, None]
        parents = parents if bias is None else parents + bias
        parents = squash_vectors(parents) if squash else parents
    return parents, coupling.transpose(1, 2)


def check_iterations(num_iters: int) -> None:
    if num_iters < 1:
        raise TorchcapsError(f"num_iters={num_iters}: give at least one iteration.")


def dynamic_routing(
    poses: Tensor,
    weight: Tensor,
    num_iters: int = 3,
    squash: bool = True,
    *,
    bias: Tensor | None = None,
    gain: Tensor | None = None,
    window: Window | None = None,
    coupling: bool = True,
    impl: Impl = "auto",
    budget: int = MEMORY_BUDGET,
) -> tuple[Tensor, Tensor | None]:
    """Dynamic routing by the fastest implementation for these tensors.

    poses [B,I,D], weight [I,J,D,E], bias [J,E], gain [J] -> poses [B,J,E], coupling [B,I,J]
    With a window: poses [B,H,W,I,D], weight [K*K*I,J,D,E] -> [B,H',W',J,E], [B,H',W',K*K*I,J]

    `coupling=False` returns None in place of the coupling, the largest output. The kernels return
    the coupling without gradients. A weight with fewer transforms is shared (see `form_votes`).

    >>> poses, weight = torch.rand(2, 6, 4), torch.rand(6, 3, 4, 5)
    >>> parents, coupling = dynamic_routing(poses, weight, num_iters=3)
    >>> parents.shape, coupling.shape
    (torch.Size([2, 3, 5]), torch.Size([2, 6, 3]))
    """
    check_iterations(num_iters)
    if not use_kernel(impl, poses, weight, window):

        def route(poses: Tensor, weight: Tensor, *_: None) -> tuple[Tensor, ...]:
            return dynamic_routing_reference(poses, weight, num_iters, squash, bias=bias, gain=gain)

        return by_rows(route, poses, weight, window, budget, coupling=coupling)

    step = FusedStep(poses, weight, window=window)
    query = shares = None
    parents = poses
    for t in range(num_iters):
        if t > 0:
            query = parents if query is None else query + parents
        score = "uniform" if query is None else "dot"
        sums = step.sums(score, query, coupling=coupling and t == num_iters - 1)
        parents, shares = sums.votes, sums.coupling
        parents = parents if gain is None else parents * gain[:, None]
        parents = parents if bias is None else parents + bias
        parents = squash_vectors(parents) if squash else parents
    return parents.to(step.dtype), shares
