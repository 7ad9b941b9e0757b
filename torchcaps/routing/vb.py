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
kappa_0 = 1 and nu_0 = D + 1 are the authors' defaults. Reference only, no kernel.
"""

import math

import torch
from torch import Tensor

from torchcaps.errors import TorchcapsError
from torchcaps.routing.competition import (
    Compete,
    Competition,
    PlaceCompetition,
    assign,
    find_competition,
    first_assignments,
    moments,
)
from torchcaps.routing.dynamic import check_iterations
from torchcaps.routing.step import MEMORY_BUDGET, Impl, by_rows, use_kernel
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
    dim = votes.shape[-1]
    nu0 = dim + 1.0
    r = first_assignments(votes, competition)
    mean = psi = nu = kappa = log_pi = log_det = votes  # set by the first pass
    halves = torch.arange(dim, device=votes.device, dtype=votes.dtype) / 2
    for t in range(num_iters):
        if t > 0:
            distances = (nu[..., None] * psi)[:, None] * (votes - mean[:, None]).square()
            logits = log_pi + 0.5 * log_det - 0.5 * dim / kappa
            r = assign(logits[:, None] - 0.5 * distances.sum(-1), competition)
        mass, average, scatter = moments(votes, r, activations)
        alpha, kappa, nu = alpha0 + mass, kappa0 + mass, nu0 + mass
        mean = average * (mass / kappa)[..., None]
        psi = 1 / (1 + scatter + (kappa0 * mass / kappa)[..., None] * average.square())
        log_pi = torch.digamma(alpha) - torch.digamma(alpha.sum(-1, keepdim=True))
        log_det = (
            torch.digamma(nu[..., None] / 2 - halves).sum(-1)
            + dim * math.log(2)
            + psi.log().sum(-1)
        )
    entropy = 0.5 * dim * math.log(2 * math.pi * math.e) - 0.5 * log_det
    active = torch.sigmoid(beta_a - (beta_u + log_pi.exp() * entropy))
    return mean.to(dtype), active.to(dtype), r


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
    """Variational Bayes routing; shapes as in `em_routing`.

    >>> poses, weight = torch.rand(2, 6, 4), torch.rand(6, 3, 4, 5)
    >>> active, cost = torch.rand(2, 6), torch.zeros(3)
    >>> vb_routing(poses, active, weight, cost, cost)[1].shape
    torch.Size([2, 3])
    """
    if impl == "triton":
        raise TorchcapsError("impl='triton': variational Bayes routing has a reference only.")
    use_kernel(  # for its checks
        "reference" if impl == "auto" else impl, poses, weight, window, activations
    )
    competition = find_competition(compete, poses, window)

    def route(poses: Tensor, weight: Tensor, activations: Tensor, _) -> tuple[Tensor, ...]:
        return vb_routing_reference(
            poses, activations, weight, beta_u, beta_a, num_iters, competition=competition
        )

    return by_rows(
        route, poses, weight, window, budget, activations=activations, coupling=coupling,
        group=1 if competition is None else competition.windows,
    )  # fmt: skip
