"""Self-routing (Hahn, Pyeon, Kim: Self-Routing Capsule Networks, 2019).

    vote_ij = pose_i W_ij          coupling_i = softmax over parents j of pose_i W'_ij + b_ij
    pose_j  = sum_i coupling_ij a_i vote_ij / sum_i coupling_ij a_i
    a_j     = sum_i coupling_ij a_i / sum_i a_i

No iteration: every child computes its coupling alone. The window is local (k x k), pointwise
(kernel 1, as in the masked autoencoder's encoder) or global (dense: all children, as in its
decoder). Differs from the paper: no.
"""

import math

import torch
from torch import Tensor

from torchcaps.errors import TorchcapsError
from torchcaps.kernels import ops as ops  # registers the operator
from torchcaps.routing.step import MEMORY_BUDGET, FusedStep, Impl, by_rows, use_kernel
from torchcaps.routing.window import Window, form_votes

EPS = 1e-8
MOST_PARENTS = 256
"""Most types of parents for the kernels of `routes`, which hold a child's couplings to all."""
BLOCKS = 1 << 20
"""Largest block matrix of routing weights, in entries, that `route_logits` forms."""


def self_routing_reference(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    route_weight: Tensor,
    route_bias: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Self-routing by the formula above; stores all votes.

    poses [B,I,D], activations [B,I], weight [I,J,D,E], route_weight [I,D,J], route_bias [I,J]
    -> poses [B,J,E], activations [B,J], coupling [B,I,J]

    >>> poses, weight = torch.rand(2, 6, 4), torch.rand(6, 3, 4, 5)
    >>> active, routes, bias = torch.rand(2, 6), torch.rand(6, 4, 3), torch.zeros(6, 3)
    >>> self_routing_reference(poses, active, weight, routes, bias)[1].shape
    torch.Size([2, 3])
    """
    votes = form_votes(poses, weight)
    in_caps = poses.shape[1]
    repeat = in_caps // route_weight.shape[0]
    routes = route_weight.to(weight.dtype).repeat(repeat, 1, 1)
    logits = torch.einsum("bid,idj->bij", poses, routes)
    coupling = (logits + route_bias.repeat(repeat, 1)).softmax(-1)
    assigned = coupling * activations[..., None]
    mass = assigned.sum(1)
    parents = torch.einsum("bij,bije->bje", assigned, votes) / (mass[..., None] + EPS)
    return parents, mass / (activations.sum(1)[:, None] + EPS), coupling


def route_logits(poses: Tensor, routes: Tensor) -> Tensor:
    """Routing logits. poses [R,I,D], routes [N,D,J] -> [R,I/N,J,N]

    Child i uses routes i modulo N. With few routes, one product with a block-diagonal matrix: it is
    mostly zeros, but reads and writes contiguous memory, unlike one product per child.
    """
    count = len(routes)
    groups = poses.unflatten(1, (-1, count))
    if count * routes.numel() <= BLOCKS:
        eye = torch.eye(count, dtype=routes.dtype, device=routes.device)
        blocks = (routes[..., None] * eye[:, None, None]).flatten(2).flatten(0, 1)
        return (groups.flatten(2) @ blocks).unflatten(2, (-1, count))
    logits = torch.bmm(groups.flatten(0, 1).transpose(0, 1), routes)  # [N,R*I/N,J]
    return logits.permute(1, 2, 0).unflatten(0, groups.shape[:2])


def _by_shares(
    step: FusedStep, route_weight: Tensor, route_bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Self-routing for poses that are children of one row only: stores couplings, not votes.

    -> sums of shares [B,J] or [B,H,W,J] and of votes [...,J,E], coupling [...,I,J]. Couplings are
    smaller than votes by a factor E, and with them the kernels need neither softmax nor atomics.
    Their layout groups the children by routes: [R,I/N,J,N].
    """
    assert step.activations is not None
    poses, active = step.poses.flatten(0, 2), step.activations.float().flatten(0, 2)
    logits = route_logits(poses, route_weight.to(poses.dtype))  # [R,I/N,J,N]
    coupling = (logits.float() + route_bias.float().mT).softmax(2)
    assigned = coupling * active.unflatten(1, (-1, 1, len(route_bias)))
    summed = torch.ops.torchcaps.combine(assigned.to(poses.dtype).contiguous(), poses, step.shared)
    grid = step.grid[:1] if step.dense else step.grid
    sums = assigned.sum((1, 3)), summed, coupling.mT.flatten(1, 2)
    return tuple(t.unflatten(0, grid) for t in sums)  # pyright: ignore


def _over_windows(
    step: FusedStep, route_weight: Tensor, route_bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for windows, whose coupling has no gradients."""
    mass, summed, shares = torch.ops.torchcaps.self_route(
        step.poses, step.activations, step.shared, route_weight, route_bias, step.window
    )
    rows = math.prod(step.grid)  # stored shares have more
    coupling = shares[..., :rows].permute(2, 1, 0).unflatten(0, step.grid)
    return mass, summed, coupling.float().detach()


def self_routing(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    route_weight: Tensor,
    route_bias: Tensor,
    *,
    window: Window | None = None,
    coupling: bool = True,
    impl: Impl = "auto",
    budget: int = MEMORY_BUDGET,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Self-routing by the fastest implementation for these tensors; shapes as in the reference.

    With a window: poses [B,H,W,I,D], activations [B,H,W,I], weights for K*K*I children
    -> [B,H',W',J,E], [B,H',W',J], [B,H',W',K*K*I,J]. There are as many route weights as
    transforms, shared in the same way. With windows, with matrix poses, and if the couplings exceed
    the budget, the coupling that the kernels return has no gradients.

    >>> poses, weight = torch.rand(2, 6, 4), torch.rand(6, 3, 4, 5)
    >>> active, routes, bias = torch.rand(2, 6), torch.rand(6, 4, 3), torch.zeros(6, 3)
    >>> self_routing(poses, active, weight, routes, bias)[0].shape
    torch.Size([2, 3, 5])
    """
    fused = use_kernel(impl, poses, weight, window, activations)
    if route_weight.dtype != weight.dtype or route_bias.dtype != weight.dtype:
        raise TorchcapsError(
            f"Route weights are {route_weight.dtype} and {route_bias.dtype}, transforms "
            f"{weight.dtype}: give all one type."
        )
    activations = activations.expand(poses.shape[:-1])
    num, out_caps = weight.shape[:2]
    expected = [num, poses.shape[-1], out_caps], [num, out_caps]
    shapes = list(route_weight.shape), list(route_bias.shape)
    if shapes != expected:
        raise TorchcapsError(
            f"Route weights {shapes[0]} and {shapes[1]} do not fit these poses and transforms: "
            f"expected {expected[0]} and {expected[1]}."
        )
    if not fused:

        def route(poses: Tensor, weight: Tensor, activations: Tensor, _) -> tuple[Tensor, ...]:
            return self_routing_reference(poses, activations, weight, route_weight, route_bias)

        return by_rows(
            route, poses, weight, window, budget, activations=activations, coupling=coupling
        )
    step = FusedStep(poses, weight, activations, window)
    routes = route_weight, route_bias
    one_row = window is None or (window.kernel == window.stride == 1 and not window.padding)
    is_vector = poses.shape[-1] == weight.shape[2]
    # over windows, children have gradients of their poses in each
    width = out_caps if one_row else max(out_caps, poses.shape[-1])
    entries = math.prod(step.grid) * step.children * width
    fits = 4 * entries <= min(budget, 1 << 32) and (one_row or out_caps <= MOST_PARENTS)
    if is_vector and fits:
        mass, summed, shares = (_by_shares if one_row else _over_windows)(step, *routes)
    else:
        mass, summed, _, shares = step.sums(
            "linear", route_weight=route_weight, route_bias=route_bias, coupling=coupling
        )
    # each child's shares sum to one, so the parents' masses sum to the children's activations
    active = mass / (mass.sum(-1, keepdim=True) + EPS)
    parents = summed / (mass[..., None] + EPS)
    return parents.to(step.dtype), active.to(step.dtype), shares if coupling else None
