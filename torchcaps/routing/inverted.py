"""Inverted dot-product attention routing (Tsai, Srivastava, Goh, Salakhutdinov, 2020).

    vote_ij     = pose_i W_ij               coupling_i = softmax over parents j of <vote_ij, p_j>
    p_j         = LayerNorm(sum_i coupling_ij vote_ij)
    first pass: coupling = 1/J              then T-1 passes; the last p is the parent

"Inverted": parents are the queries, and they compete for each child. `num_iters` counts the uniform
pass, as in the authors' code: the paper's "two iterations" are num_iters=2.
Differs from the paper: `scale` divides the agreement by sqrt(pose size), as in the authors' code;
scale=False is the formula of the text.

`inverted_attention_step` is one pass, because in the paper all layers iterate concurrently.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.errors import TorchcapsError
from torchcaps.routing.dynamic import check_iterations
from torchcaps.routing.step import MEMORY_BUDGET, FusedStep, Impl, by_rows, use_kernel
from torchcaps.routing.uniform import uniform_routing
from torchcaps.routing.window import Window, form_votes


def inverted_attention_step_reference(
    poses: Tensor, weight: Tensor, parents: Tensor | None = None, *, scale: bool = True
) -> tuple[Tensor, Tensor]:
    """One pass by the formula above; without parents the first pass, which is uniform.

    poses [B,I,D], weight [I,J,D,E], parents [B,J,E] -> sums [B,J,E], coupling [B,I,J]

    >>> poses, weight = torch.rand(2, 6, 4), torch.rand(6, 3, 4, 5)
    >>> inverted_attention_step_reference(poses, weight)[0].shape
    torch.Size([2, 3, 5])
    """
    votes = form_votes(poses, weight)
    if parents is None:
        coupling = votes.new_full((1, 1, 1), 1 / votes.shape[2]).expand(votes.shape[:3])
    else:
        query = parents / parents.shape[-1] ** 0.5 if scale else parents
        coupling = torch.einsum("bije,bje->bij", votes, query).softmax(-1)
    return torch.einsum("bij,bije->bje", coupling, votes), coupling


def inverted_attention_step(
    poses: Tensor,
    weight: Tensor,
    parents: Tensor | None = None,
    *,
    scale: bool = True,
    window: Window | None = None,
    coupling: bool = True,
    impl: Impl = "auto",
    budget: int = MEMORY_BUDGET,
) -> tuple[Tensor, Tensor | None]:
    """One pass by the fastest implementation; shapes as in the reference.

    With a window: poses [B,H,W,I,D], parents [B,H',W',J,E] -> sums [B,H',W',J,E], coupling
    [B,H',W',K*K*I,J], which the kernels return without gradients.

    >>> poses, weight = torch.rand(2, 6, 4), torch.rand(6, 3, 4, 5)
    >>> parents, _ = inverted_attention_step(poses, weight)  # the first pass is uniform
    >>> inverted_attention_step(poses, weight, parents)[1].shape
    torch.Size([2, 6, 3])
    """
    sums, shares, dtype = _attend(poses, weight, parents, scale, window, coupling, impl, budget)
    return sums.to(dtype), shares


def _attend(
    poses: Tensor,
    weight: Tensor,
    parents: Tensor | None,
    scale: bool,
    window: Window | None,
    coupling: bool,
    impl: Impl,
    budget: int,
) -> tuple[Tensor, Tensor | None, torch.dtype]:
    """One pass -> sums in the type in which they are computed, coupling, and type of the outputs.

    Between passes sums keep their type: scores multiply the rounding of a query.
    """
    fused = use_kernel(impl, poses, weight, window)
    if parents is not None:
        grid = [] if window is None else [window.out(n) for n in poses.shape[1:3]]
        size = poses.shape[-1] // weight.shape[2] * weight.shape[3]
        expected = [poses.shape[0], *grid, weight.shape[1], size]
        if list(parents.shape) != expected:
            raise TorchcapsError(f"parents have shape {list(parents.shape)}; expected {expected}.")
    if not fused:
        if parents is None:  # a sum of votes, which needs no single vote
            options = {"window": window, "coupling": coupling, "impl": "reference"}
            sums, shares = uniform_routing(poses, weight, squash=False, budget=budget, **options)
            return sums, shares, sums.dtype

        def route(poses: Tensor, weight: Tensor, _, parents: Tensor) -> tuple[Tensor, ...]:
            return inverted_attention_step_reference(poses, weight, parents, scale=scale)

        per_row = parents.flatten(0, -3)
        sums, shares = by_rows(
            route, poses, weight, window, budget, per_row=per_row, coupling=coupling
        )
        return sums, shares, sums.dtype
    step = FusedStep(poses, weight, window=window)
    score = "uniform" if parents is None else "dot"
    query = None
    if parents is not None:
        query = parents.float() / parents.shape[-1] ** 0.5 if scale else parents.float()
    sums = step.sums(score, query, coupling=coupling)
    return sums.votes, sums.coupling, step.dtype


def inverted_routing(
    poses: Tensor,
    weight: Tensor,
    num_iters: int = 2,
    *,
    norm: tuple[Tensor, Tensor] | None = None,
    scale: bool = True,
    window: Window | None = None,
    coupling: bool = True,
    impl: Impl = "auto",
    budget: int = MEMORY_BUDGET,
) -> tuple[Tensor, Tensor | None]:
    """All passes of one layer in sequence; shapes as in `inverted_attention_step`.

    norm: gain and bias [E] of the LayerNorm; None: no LayerNorm.

    >>> poses, weight = torch.rand(2, 6, 4), torch.rand(6, 3, 4, 5)
    >>> inverted_routing(poses, weight, num_iters=2)[0].shape
    torch.Size([2, 3, 5])
    """
    check_iterations(num_iters)
    parents = shares = None
    dtype = poses.dtype
    for t in range(num_iters):
        last = t == num_iters - 1
        parents, shares, dtype = _attend(
            poses, weight, parents, scale, window, coupling and last, impl, budget
        )
        if norm is not None:
            gain, shift = (t.to(parents.dtype) for t in norm)
            parents = F.layer_norm(parents, parents.shape[-1:], gain, shift)
    assert parents is not None
    return parents.to(dtype), shares
