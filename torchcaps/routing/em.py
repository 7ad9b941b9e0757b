"""EM routing (Hinton, Sabour, Frosst: Matrix Capsules with EM Routing, 2018).

    E: logit_ij = log a_j + log N(vote_ij; mu_j, var_j)      r_i = softmax over all parents of i
    M: R_ij = r_ij a_i;  mu_j, var_j = mean and variance of votes under R_ij
       cost_j = sum_e (beta_u + log sigma_je) sum_i R_ij;  a_j = sigmoid(lambda (beta_a - cost_j))
    r starts uniform; M, then T-1 times E and M.  lambda_t = final (1 - 0.95^(t+1))

If windows overlap, a child's parents are the types of every window that sees it, and its r sums to
one over all of them, as in the paper's text and in Gritzman (2019); `competition` has the formula.
With `compete="window"`, as in many implementations, each window normalizes by itself.

The authors' code differs from their text; each difference is an option, all zero by default:
`damping` 0.1 keeps a tenth of the previous mean (the first previous mean is 0), `log_variance`
takes log var for log sigma in the cost, `mass_floor` is added to the mass, `compete="released"`
normalizes convolutional layers over places instead of types (also in `competition`). The layer's
`EM.official()` sets them all.

Differs from the paper: variances have a floor (the authors' code: 5e-4); all computations are in
logarithms and float32. The kernel's variance is the mean of squares about the previous iteration's
mean, minus the square of the step between the two means: cancellation is limited to the size of
that step, and the floor covers its rounding. Over windows the first iteration sums squares about
zero, by convolutions, so its cancellation is limited to the size of the mean.
Coordinate addition: `add_coordinates` before the routing.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.errors import TorchcapsError
from torchcaps.routing.competition import (
    EPS,
    Compete,
    Competition,
    PlaceCompetition,
    assign,
    find_competition,
    first_assignments,
    moments,
)
from torchcaps.routing.dynamic import check_iterations
from torchcaps.routing.step import MEMORY_BUDGET, FusedStep, Impl, by_rows, check_kinds, use_kernel
from torchcaps.routing.window import Window, form_votes

MIN_VARIANCE = 5e-4
FINAL_LAMBDA = 0.01


def inverse_temperature(t: int, final: float = FINAL_LAMBDA) -> float:
    """Lambda of iteration t = 0, 1, …"""
    return final * (1 - 0.95 ** (t + 1))


@dataclass(frozen=True, kw_only=True)
class EMOptions:
    """Options of the M-step."""

    final_lambda: float = FINAL_LAMBDA
    damping: float = 0.0
    """Share of the previous mean in a mean."""
    log_variance: bool = False
    """Use the logarithm of the variance in the cost, not of the standard deviation."""
    mass_floor: float = 0.0
    """Added to the mass of a parent."""

    @property
    def eps(self) -> float:
        return self.mass_floor or EPS

    def activate(self, t: int, mass: Tensor, var: Tensor, beta_u: Tensor, beta_a: Tensor) -> Tensor:
        """Logit of a parent's activation. mass [...,J], var [...,J,E] -> [...,J]"""
        log = var.log() if self.log_variance else 0.5 * var.log()
        cost = (beta_u[..., None] + log).sum(-1) * (mass + self.mass_floor)
        return inverse_temperature(t, self.final_lambda) * (beta_a - cost)


def em_routing_reference(
    poses: Tensor,
    activations: Tensor,
    weight: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    num_iters: int = 3,
    *,
    competition: Competition | PlaceCompetition | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """EM routing by the formula above; stores all votes.

    poses [B,I,D], activations [B,I], weight [I,J,D,E], beta_u [J], beta_a [J]
    -> poses [B,J,E], activations [B,J], coupling [B,I,J]

    competition: rows are the windows of whole images; those of an image compete for their children.
    options: fields of `EMOptions`

    >>> poses, weight = torch.rand(2, 6, 4), torch.rand(6, 3, 4, 5)
    >>> active, cost = torch.rand(2, 6), torch.zeros(3)
    >>> em_routing_reference(poses, active, weight, cost, cost)[0].shape
    torch.Size([2, 3, 5])
    """
    check_iterations(num_iters)
    votes = form_votes(poses, weight)
    with torch.autocast(votes.device.type, enabled=False):
        betas = beta_u, beta_a
        return _iterate(votes, activations, *betas, num_iters, EMOptions(**options), competition)


def _iterate(
    votes: Tensor,
    activations: Tensor,
    beta_u: Tensor,
    beta_a: Tensor,
    num_iters: int,
    options: EMOptions,
    competition: Competition | PlaceCompetition | None,
) -> tuple[Tensor, Tensor, Tensor]:
    dtype = votes.dtype
    votes = votes if dtype == torch.float64 else votes.float()
    r = first_assignments(votes, competition)
    var = log_a = votes  # set by the first pass
    mean = votes.new_zeros(())
    for t in range(num_iters):
        if t > 0:
            distances = (votes - mean[:, None]).square() / (2 * var[:, None])
            logits = F.logsigmoid(log_a) - 0.5 * (2 * math.pi * var).log().sum(-1)
            r = assign(logits[:, None] - distances.sum(-1), competition)
        mass, mean, scatter = moments(
            votes, r, activations, eps=options.eps, damping=options.damping, previous=mean
        )
        var = scatter / (mass[..., None] + options.eps) + MIN_VARIANCE
        log_a = options.activate(t, mass, var, beta_u, beta_a)
    return mean.to(dtype), log_a.sigmoid().to(dtype), r


def em_routing(
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
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """EM routing by the fastest implementation for these tensors; shapes as in the reference.

    With a window: poses [B,H,W,I,D], activations [B,H,W,I] -> [B,H',W',J,E], [B,H',W',J], and
    coupling [B,H',W',K*K*I,J], which the kernels return without gradients; children outside the
    grid have activation 0.

    compete: "all" normalizes a child over the parents of all windows that see it, "window" over
    those of each window, "places" and "released" over the windows for each type by itself, which
    the kernels do not support. options: fields of `EMOptions`

    >>> poses, weight = torch.rand(2, 6, 4), torch.rand(6, 3, 4, 5)
    >>> active, cost = torch.rand(2, 6), torch.zeros(3)
    >>> parents, on, coupling = em_routing(poses, active, weight, cost, cost)
    >>> parents.shape, on.shape
    (torch.Size([2, 3, 5]), torch.Size([2, 3]))
    """
    check_iterations(num_iters)
    check_kinds(poses, weight, window)
    competition = find_competition(compete, poses, window)
    by_places = isinstance(competition, PlaceCompetition)
    if by_places and impl == "triton":
        raise TorchcapsError(
            f"impl='triton': the kernels normalize over types, and compete={compete!r} does not."
        )
    impl = "reference" if by_places and impl == "auto" else impl
    fused = use_kernel(impl, poses, weight, window, activations)
    if not fused or isinstance(competition, PlaceCompetition):

        def route(poses: Tensor, weight: Tensor, activations: Tensor, _) -> tuple[Tensor, ...]:
            return em_routing_reference(
                poses, activations, weight, beta_u, beta_a, num_iters,
                competition=competition, **options,
            )  # fmt: skip

        return by_rows(
            route, poses, weight, window, budget, activations=activations, coupling=coupling,
            group=1 if competition is None else competition.windows,
        )  # fmt: skip

    o = EMOptions(**options)
    step = first = FusedStep(poses, weight, activations, window)
    if competition is not None:  # a child of n windows starts as n children with a share of 1/n
        shared = activations.float() / competition.seen.clamp_min(1)[..., None]
        first = FusedStep(poses, weight, shared, window)
    mean, (mass, off, square, shares) = first.uniform_moments(o.eps)
    previous = torch.zeros_like(mean)
    var, log_a = mean, mass  # set by the first pass
    for t in range(num_iters):
        if t > 0:
            precision = 0.5 / var
            bias = F.logsigmoid(log_a) - 0.5 * (2 * math.pi * var).log().sum(-1)
            mass, off, square, shares = step.sums(
                "gauss", mean, precision, bias,
                coupling=coupling and t == num_iters - 1, across=competition is not None,
            )  # fmt: skip
        mass_e = mass[..., None]
        old, mean = mean, (off + mass_e * mean) / (mass_e + o.eps)
        if o.damping:
            mean = (1 - o.damping) * mean + o.damping * previous
        previous, delta = mean, mean - old
        # sum R (v - new)^2 from the sums about the old mean
        square = square - 2 * delta * off + mass_e * delta.square()
        var = (square / (mass_e + o.eps)).clamp_min(0) + MIN_VARIANCE
        log_a = o.activate(t, mass, var, beta_u, beta_a)
    if coupling and num_iters == 1:
        shares = first.uniform_coupling()
        if competition is not None:
            shares = shares * competition.initial(shares.dtype).view(*shares.shape[1:4], 1)
    return mean.to(step.dtype), log_a.sigmoid().to(step.dtype), shares
