"""Variational Bayes routing (Ribeiro, Leontidis, Kollias: Capsule Routing via VB, 2020).

A mixture of parents with Gaussian-Wishart posteriors over diagonal precisions, in place of EM's
point estimates, so the variance of a parent cannot collapse:

    R_ij = r_ij a_i;  N_j = sum_i R_ij;  mean_j, scatter_j of votes under R_ij
    alpha_j = alpha_0 + N_j;  kappa_j = kappa_0 + N_j;  nu_j = nu_0 + N_j
    m_j = (kappa_0 m_0 + N_j mean_j) / kappa_j
    1/psi_j = 1/psi_0 + scatter_j + kappa_0 N_j / kappa_j (mean_j - m_0)^2
    logit_ij = E log pi_j + 1/2 E log |Lambda_j| - 1/2 (D/kappa_j + nu_j psi_j (vote_ij - m_j)^2)
    a_j = sigmoid(beta_a - (beta_u + exp(E log pi_j) H_j)), H_j the Gaussian's entropy

If windows overlap, r_i is normalized over the types of every window that sees child i. The authors'
code does so since February 2020, with E log pi in the numerator; before, each window normalized by
itself (`compete="window"`) and E log pi was in the denominator only. E log pi is computed over the
types of one position, in both implementations.

Differs from the authors' code: no BatchNorm (without gain or bias) on poses and activation logits;
the first r is 1/(J n) for a child of n windows, so that it sums to one, instead of 1/J in every
window; a log-sum-exp instead of a sum of exponentials floored at 1e-8. m_0 = 0, psi_0 = 1,
kappa_0 = 1 and nu_0 = D + 1 are the authors' defaults. The kernel sums votes and their squares
about the previous m_j, from which mean_j and scatter_j follow.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.routing.competition import (
    EPS,
    Compete,
    Competition,
    PlaceCompetition,
    assign,
    find_competition,
    first_assignments,
    impl_for,
    moments,
)
from torchcaps.routing.dynamic import check_iterations
from torchcaps.routing.step import (
    MEMORY_BUDGET,
    FusedStep,
    Impl,
    by_rows,
    check_kinds,
    use_kernel,
)
from torchcaps.routing.window import Window, form_votes


def vb_routing_reference(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    num_iters: int = 3,
    *,
    alpha0: float = 1.0,
    kappa0: float = 1.0,
    competition: Competition | PlaceCompetition | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Variational Bayes routing by the formula above; stores all votes.

    poses [B,I,D], activations [B,I], weight [I,J,D,E], beta_u [J], beta_a [J]
    -> poses [B,J,E], activations [B,J], coupling [B,I,J]

    competition: rows are the windows of whole images; those of an image compete for their children.

    >>> poses, weight = torch.rand(2, 6, 4), torch.rand(6, 3, 4, 5)
    >>> active, cost = torch.rand(2, 6), torch.zeros(3)
    >>> vb_routing_reference(poses, active, weight, cost, cost)[0].shape
    torch.Size([2, 3, 5])
    """
    check_iterations(num_iters)
    votes = form_votes(poses, weight)
    with torch.autocast(votes.device.type, enabled=False):
        return _iterate(votes, activations, beta_u, beta_a, num_iters, alpha0, kappa0, competition)


def _iterate(
    votes: Tensor,
    activations: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    num_iters: int,
    alpha0: float,
    kappa0: float,
    competition: Competition | PlaceCompetition | None,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = votes.dtype
    votes = votes if dtype == torch.float64 else votes.float()
    r, posterior = first_assignments(votes, competition), None
    for t in range(num_iters):
        mass, average, scatter = moments(votes, r, activations)
        posterior = _posterior(mass, average, scatter, alpha0, kappa0)
        if t < num_iters - 1:
            distances = posterior.precision[:, None] * (votes - posterior.mean[:, None]).square()
            r = assign(posterior.bias[:, None] - distances.sum(-1), competition)
    assert posterior is not None
    return posterior.mean.to(dtype), posterior.activate(beta_u, beta_a).to(dtype), r


class _Posterior(NamedTuple):
    """What the next scores and the outputs need of each parent."""

    mean: Tensor
    """[B,J,E]"""
    precision: Tensor
    """Factor of the squared distances in the logits. [B,J,E]"""
    bias: Tensor
    """The rest of the logits. [B,J]"""
    log_pi: Tensor
    log_det: Tensor

    def activate(self, beta_u: Tensor, beta_a: Tensor) -> Tensor:
        dim = self.mean.shape[-1]
        entropy = 0.5 * dim * math.log(2 * math.pi * math.e) - 0.5 * self.log_det
        return torch.sigmoid(beta_a - (beta_u + self.log_pi.exp() * entropy))


def _posterior(
    mass: Tensor, average: Tensor, scatter: Tensor, alpha0: float, kappa0: float
) -> _Posterior:
    """Posterior of each parent. mass [...,J], average and scatter of its votes [...,J,E]"""
    dim = average.shape[-1]
    alpha, kappa, nu = alpha0 + mass, kappa0 + mass, dim + 1.0 + mass
    mean = average * (mass / kappa)[..., None]
    psi = 1 / (1 + scatter + (kappa0 * mass / kappa)[..., None] * average.square())
    log_pi = torch.digamma(alpha) - torch.digamma(alpha.sum(-1, keepdim=True))
    halves = torch.arange(dim, device=mass.device, dtype=mass.dtype) / 2
    log_det = (
        torch.digamma(nu[..., None] / 2 - halves).sum(-1) + dim * math.log(2) + psi.log().sum(-1)
    )
    bias = log_pi + 0.5 * log_det - 0.5 * dim / kappa
    return _Posterior(mean, 0.5 * nu[..., None] * psi, bias, log_pi, log_det)


def vb_routing(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    num_iters: int = 3,
    *,
    compete: Compete = "all",
    window: Window | None = None,
    coupling: bool = True,
    impl: Impl = "auto",
    budget: int = MEMORY_BUDGET,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Variational Bayes routing by the fastest implementation; shapes and `compete` as in
    `em_routing`.

    >>> poses, weight = torch.rand(2, 6, 4), torch.rand(6, 3, 4, 5)
    >>> active, cost = torch.rand(2, 6), torch.zeros(3)
    >>> vb_routing(poses, active, weight, cost, cost)[1].shape
    torch.Size([2, 3])
    """
    check_iterations(num_iters)
    check_kinds(poses, weight, window)
    competition = find_competition(compete, poses, window)
    if not use_kernel(impl_for(competition, impl), poses, weight, window, activations):

        def route(poses: Tensor, weight: Tensor, activations: Tensor, _) -> tuple[Tensor, ...]:
            return vb_routing_reference(
                poses, activations, weight, beta_u, beta_a, num_iters, competition=competition
            )

        return by_rows(
            route, poses, weight, window, budget, activations=activations, coupling=coupling,
            group=1 if competition is None else competition.windows,
        )  # fmt: skip

    step = first = FusedStep(poses, weight, activations, window)
    across = isinstance(competition, Competition)
    if across:  # a child of n windows starts as n children with a share of 1/n
        shared = activations.float() / competition.seen.clamp_min(1)[..., None]
        first = FusedStep(poses, weight, shared, window)
    mass, summed, *_ = first.sums("uniform")
    mean = summed / (mass[..., None] + EPS)
    precision, bias = torch.zeros_like(mean), torch.zeros_like(mass)
    shares = posterior = None
    for t in range(num_iters):
        last = coupling and t == num_iters - 1
        current, over_windows = (first, False) if t == 0 else (step, across)
        mass, off, square, shares = current.sums(
            "gauss", mean, precision, bias, coupling=last, across=over_windows
        )
        mass_e = mass[..., None]
        average = (off + mass_e * mean) / (mass_e + EPS)
        delta = average - mean  # sum R (v - average)^2 from the sums about the mean
        scatter = (square - 2 * delta * off + mass_e * delta.square()).clamp_min(0)
        posterior = _posterior(mass, average, scatter, 1.0, 1.0)
        mean, precision, bias = posterior[:3]
    if across and shares is not None and num_iters == 1:
        shares = shares * competition.initial(shares.dtype).view(*shares.shape[1:4], 1)
    assert posterior is not None
    active = posterior.activate(beta_u, beta_a)
    return mean.to(step.dtype), active.to(step.dtype), shares
