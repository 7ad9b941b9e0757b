"""EM routing (Hinton, Sabour, Frosst: Matrix Capsules with EM Routing, 2018).

    E: logit_ij = log a_j + log N(vote_ij; mu_j, var_j)      r_i = softmax over all parents of i
    M: R_ij = r_ij a_i;  mu_j, var_j = mean and variance of votes under R_ij
       cost_j = sum_e (beta_u + log sigma_je) sum_i R_ij;  a_j = sigmoid(lambda (beta_a - cost_j))
    r starts uniform; M, then T-1 times E and M.  lambda_t = final (1 - 0.95^(t+1))

If windows overlap, a child's parents are the types of every window that sees it, and its r sums to
one over all of them, as in the paper's text and in Gritzman (2019); `competition` has the formula.
With `compete="window"`, as in many implementations, each window normalizes by itself.

Differs from the paper: variances have a floor (the authors' code: 5e-4); all computations are in
logarithms and float32. The kernel's variance is the mean of squares about the previous iteration's
mean, minus the square of the step between the two means: cancellation is limited to the size of
that step, and the floor covers its rounding.
Coordinate addition: `add_coordinates` before the routing.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.routing.competition import (
    EPS,
    Compete,
    Competition,
    assign,
    find_competition,
    first_assignments,
    moments,
)
from torchcaps.routing.dynamic import check_iterations
from torchcaps.routing.step import MEMORY_BUDGET, FusedStep, Impl, by_rows, use_kernel
from torchcaps.routing.window import Window, form_votes

MIN_VARIANCE = 5e-4
FINAL_LAMBDA = 0.01


def inverse_temperature(t: int, final: float = FINAL_LAMBDA) -> float:
    """Lambda of iteration t = 0, 1, …"""
    return final * (1 - 0.95 ** (t + 1))


def _activate(mass: Tensor, var: Tensor, beta_u: Tensor, beta_a: Tensor, lam: float) -> Tensor:
    """Logit of a parent's activation. mass [...,J], var [...,J,E] -> [...,J]"""
    cost = (beta_u[..., None] + 0.5 * var.log()).sum(-1) * mass
    return lam * (beta_a - cost)


def em_routing_reference(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    num_iters: int = 3,
    *,
    final_lambda: float = FINAL_LAMBDA,
    competition: Competition | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """EM routing by the formula above; stores all votes.

    poses [B,I,D], activations [B,I], weight [I,J,D,E], beta_u [J], beta_a [J]
    -> poses [B,J,E], activations [B,J], coupling [B,I,J]

    competition: rows are the windows of whole images; those of an image compete for their children.
    """
    check_iterations(num_iters)
    votes = form_votes(poses, weight)
    with torch.autocast(votes.device.type, enabled=False):
        return _iterate(votes, activations, beta_u, beta_a, num_iters, final_lambda, competition)


def _iterate(
    votes: Tensor,
    activations: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    num_iters: int,
    final_lambda: float,
    competition: Competition | None,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = votes.dtype
    votes = votes if dtype == torch.float64 else votes.float()
    r = first_assignments(votes, competition)
    mean = var = log_a = votes  # set by the first pass
    for t in range(num_iters):
        if t > 0:
            distances = (votes - mean[:, None]).square() / (2 * var[:, None])
            logits = F.logsigmoid(log_a) - 0.5 * (2 * math.pi * var).log().sum(-1)
            r = assign(logits[:, None] - distances.sum(-1), competition)
        mass, mean, scatter = moments(votes, r, activations)
        var = scatter / (mass[..., None] + EPS) + MIN_VARIANCE
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
    """EM routing by the fastest implementation for these tensors; shapes as in the reference.

    With a window: poses [B,H,W,I,D], activations [B,H,W,I] -> [B,H',W',J,E], [B,H',W',J], and
    coupling [B,H',W',K*K*I,J], which the kernels return without gradients; children outside the
    grid have activation 0.

    compete: "all" normalizes a child over the parents of all windows that see it, "window" over
    those of each window.
    """
    check_iterations(num_iters)
    fused = use_kernel(impl, poses, weight, window, activations)
    competition = find_competition(compete, poses, window)
    if not fused:

        def route(poses: Tensor, weight: Tensor, activations: Tensor, _) -> tuple[Tensor, ...]:
            return em_routing_reference(
                poses, activations, weight, beta_u, beta_a, num_iters,
                final_lambda=final_lambda, competition=competition,
            )  # fmt: skip

        return by_rows(
            route, poses, weight, window, budget, activations=activations, coupling=coupling,
            group=1 if competition is None else competition.windows,
        )  # fmt: skip

    step = first = FusedStep(poses, weight, activations, window)
    if competition is not None:  # a child of n windows starts as n children with a share of 1/n
        shared = activations.float() / competition.seen.clamp_min(1)[..., None]
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
        current, across = (first, False) if t == 0 else (step, competition is not None)
        mass, off, square, shares = current.sums(
            "gauss", mean, precision, bias, coupling=last, across=across
        )
        mass_e = mass[..., None]
        old, mean = mean, (off + mass_e * mean) / (mass_e + EPS)
        delta = mean - old
        # sum R (v - new)^2 from the sums about the old mean
        square = square - 2 * delta * off + mass_e * delta.square()
        var = (square / (mass_e + EPS)).clamp_min(0) + MIN_VARIANCE
        log_a = _activate(mass, var, beta_u, beta_a, inverse_temperature(t, final_lambda))
    if competition is not None and shares is not None and num_iters == 1:
        shares = shares * competition.initial(shares.dtype).view(*shares.shape[1:4], 1)
    return mean.to(step.dtype), log_a.sigmoid().to(step.dtype), shares
