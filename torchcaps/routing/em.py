"""EM routing (Hinton, Sabour, Frosst: Matrix Capsules with EM Routing, 2018).

    E: logit_ij = log a_j + log N(vote_ij; mu_j, var_j)      r_i = softmax over all parents of i
    M: R_ij = r_ij a_i;  mu_j, var_j = mean and variance of votes under R_ij
       cost_j = sum_e (beta_u + log sigma_je) sum_i R_ij;  a_j = sigmoid(lambda (beta_a - cost_j))
    r starts uniform; M, then T-1 times E and M.  lambda_t = final (1 - 0.95^(t+1))

Where windows overlap, a child's parents are the types of every window that sees it, and its r sums
to one over all of them, as the paper's text has it and Gritzman (2019) points out; `rivals` has the
formula. `compete="window"` is what is often programmed, and was here: each window normalises by
itself.

Differs from the paper: variances have a floor (the authors' code: 5e-4), everything is in
logarithms and in float32. The kernel's variance is the mean of squares about the mean of the
iteration before, less the square of the step between the two means: what cancels is never larger
than that step, and the floor covers its rounding.
Coordinate addition: `add_coordinates` before the routing.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.routing.dynamic import check_iterations
from torchcaps.routing.rivals import Compete, Rivals, find_rivals
from torchcaps.routing.step import MEMORY_BUDGET, FusedStep, Impl, by_rows, use_kernel
from torchcaps.routing.window import Window, form_votes

MIN_VARIANCE = 5e-4
FINAL_LAMBDA = 0.01
EPS = 1e-8


def inverse_temperature(t: int, final: float = FINAL_LAMBDA) -> float:
    """lambda of iteration t = 0, 1, …"""
    return final * (1 - 0.95 ** (t + 1))


def _activate(mass: Tensor, var: Tensor, beta_u: Tensor, beta_a: Tensor, lam: float) -> Tensor:
    """The logit of a parent's activation. mass [...,J], var [...,J,E] -> [...,J]"""
    cost = (beta_u[..., None] + 0.5 * var.log()).sum(-1) * mass
    return lam * (beta_a - cost)


def first_assignments(votes: Tensor, rivals: Rivals | None) -> Tensor:
    """What each parent gets of each child before the first pass. votes [B,I,J,E] -> [B,I,J]"""
    rows, _, parents, _ = votes.shape
    if rivals is None:
        return votes.new_full((1, 1, 1), 1 / parents).expand(votes.shape[:3])
    even = rivals.even(votes.dtype)[..., None].expand(-1, -1, parents) / parents
    return even.repeat(rows // rivals.windows, 1, 1)


def em_routing_reference(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    num_iters: int = 3,
    *,
    final_lambda: float = FINAL_LAMBDA,
    rivals: Rivals | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The formula as one reads it: votes are written to memory.

    poses [B,I,D], activations [B,I], weight [I,J,D,E], beta_u [J], beta_a [J]
    -> poses [B,J,E], activations [B,J], coupling [B,I,J]

    rivals: B are the windows of whole images, and those of an image compete for their children.
    """
    check_iterations(num_iters)
    votes = form_votes(poses, weight)
    with torch.autocast(votes.device.type, enabled=False):
        return _iterate(votes, activations, beta_u, beta_a, num_iters, final_lambda, rivals)


def _iterate(
    votes: Tensor,
    activations: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    num_iters: int,
    final_lambda: float,
    rivals: Rivals | None,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = votes.dtype
    votes = votes if dtype == torch.float64 else votes.float()
    r = first_assignments(votes, rivals)
    mean = var = log_a = votes  # set by the first pass
    for t in range(num_iters):
        if t > 0:
            far = (votes - mean[:, None]).square() / (2 * var[:, None])
            logits = F.logsigmoid(log_a) - 0.5 * (2 * math.pi * var).log().sum(-1)
            logits = logits[:, None] - far.sum(-1)
            r = logits.softmax(-1) if rivals is None else rivals.assign(logits)
        assigned = r * activations[..., None]
        mass = assigned.sum(1)
        mean = torch.einsum("bij,bije->bje", assigned, votes) / (mass[..., None] + EPS)
        square = (votes - mean[:, None]).square()
        var = torch.einsum("bij,bije->bje", assigned, square) / (mass[..., None] + EPS)
        var = var + MIN_VARIANCE
        log_a = _activate(mass, var, beta_u, beta_a, inverse_temperature(t, final_lambda))
    return mean.to(dtype), log_a.sigmoid().to(dtype), r


def em_routing(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    num_iters: int = 3,
    *,
    final_lambda: float = FINAL_LAMBDA,
    compete: Compete = "all",
    window: Window | None = None,
    coupling: bool = True,
    impl: Impl = "auto",
    budget: int = MEMORY_BUDGET,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """EM routing by the best implementation for these tensors; shapes as the reference's.

    With a window: poses [B,H,W,I,D], activations [B,H,W,I] -> [B,H',W',J,E], [B,H',W',J], and
    coupling [B,H',W',K*K*I,J], which the kernels return without gradients; children outside the
    grid have activation 0.

    compete: which parents share a child of several windows, "all" that see it or, in each "window",
    those of that window.
    """
    check_iterations(num_iters)
    fused = use_kernel(impl, poses, weight, window, activations)
    rivals = find_rivals(compete, poses, window)
    if not fused:

        def route(poses: Tensor, weight: Tensor, activations: Tensor, _) -> tuple[Tensor, ...]:
            found = em_routing_reference(
                poses, activations, weight, beta_u, beta_a, num_iters,
                final_lambda=final_lambda, rivals=rivals,
            )  # fmt: skip
            return found if coupling else found[:2]

        together = 1 if rivals is None else rivals.windows
        mean, active, *shares = by_rows(
            route, poses, weight, window, budget, activations=activations, together=together
        )
        return mean, active, shares[0] if shares else None

    step = first = FusedStep(poses, weight, activations, window)
    if rivals is not None:  # a child that n windows see begins as n children with an n-th each
        shared = activations.float() / rivals.seen.clamp_min(1)[..., None]
        first = FusedStep(poses, weight, shared, window)
    mass, summed, *_ = first.sums("uniform")
    mean = summed / (mass[..., None] + EPS)
    precision, bias = torch.zeros_like(mean), torch.zeros_like(mass)
    var, log_a, shares = mean, mass, None  # set by the first pass
    for t in range(num_iters):
        if t > 0:
            precision = 0.5 / var
            bias = F.logsigmoid(log_a) - 0.5 * (2 * math.pi * var).log().sum(-1)
        last = coupling and t == num_iters - 1
        now, across = (first, False) if t == 0 else (step, rivals is not None)
        mass, off, square, shares = now.sums(
            "gauss", mean, precision, bias, coupling=last, across=across
        )
        weigh = mass[..., None]
        old, mean = mean, (off + weigh * mean) / (weigh + EPS)
        step_between = mean - old
        # sum R (v - new)^2 from the sums about the old mean
        square = square - 2 * step_between * off + weigh * step_between.square()
        var = (square / (weigh + EPS)).clamp_min(0) + MIN_VARIANCE
        log_a = _activate(mass, var, beta_u, beta_a, inverse_temperature(t, final_lambda))
    if rivals is not None and shares is not None and num_iters == 1:
        shares = shares * rivals.even(shares.dtype).view(*shares.shape[1:4], 1)
    return mean.to(step.dtype), log_a.sigmoid().to(step.dtype), shares
