"""Fixed-point iteration with gradients that need the memory of one step.

    z* = f(z*)                                        by Anderson acceleration, without a graph
    dL/dx = (dL/dz*) (I - df/dz)^-1 df/dx             by the same iteration on the gradient

Deep equilibrium models (Bai, Kolter, Koltun 2019), here with a routing pass as f.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Solver:
    """Options of the fixed-point iteration.

    >>> Solver(max_iters=50).max_iters
    50
    """

    max_iters: int = 30
    tolerance: float = 1e-3
    """Stop at a relative change below this value."""
    memory: int = 5
    """Previous steps that the acceleration mixes."""
    damping: float = 1e-4
    """Ridge penalty of the least squares for the mixing weights."""


STANDARD = Solver()


@torch.no_grad()
def anderson(
    f: Callable[[Tensor], Tensor], start: Tensor, solver: Solver = STANDARD
) -> tuple[Tensor, int, Tensor]:
    """Fixed point of f near `start` [B,N] -> (state [B,N], steps, relative change of each row [B])

    The next state mixes the last few, with the weights that would minimize the change if f were
    affine; each row has its own weights. If f is not a contraction, the iteration may not converge:
    each row returns the value with its smallest change, and that change.

    On a GPU it tests for convergence once per `memory` steps, because each test waits for the GPU.
    """
    value = f(start)
    best, least = value.clone(), _change(value - start, value)
    slots = min(solver.memory, solver.max_iters)
    values = torch.empty((slots, *value.shape), dtype=value.dtype, device=value.device)
    changes = torch.empty_like(values)
    values[0], changes[0] = value, value - start

    def advance(step: int) -> None:
        """Step number `step`, 1, 2, …, in place."""
        used, slot = min(step, slots), step % slots
        state = values[0]
        if used > 1:
            state = _mix(changes[:used], values[:used], solver.damping)
        value = f(state)
        change = value - state
        values[slot], changes[slot] = value, change
        size = _change(change, value)
        better = size < least
        best.copy_(torch.where(better[:, None], value, best))
        least.copy_(torch.where(better, size, least))

    block = slots if value.is_cuda else 1
    steps = 1
    while steps < solver.max_iters and float(least.max()) >= solver.tolerance:
        for _ in range(min(block - steps % block, solver.max_iters - steps)):
            advance(steps)
            steps += 1
    return best, steps, least


def _change(change: Tensor, value: Tensor) -> Tensor:
    """Relative change of each row. -> [B]"""
    return change.float().norm(dim=1) / (value.float().norm(dim=1) + 1e-9)


def _mix(changes: Tensor, values: Tensor, damping: float) -> Tensor:
    """Mix values with weights that sum to one and minimize the length of the mixed change.

    changes and values of the last M steps [M,B,N] -> [B,N]
    """
    exact = torch.promote_types(values.dtype, torch.float32)
    with torch.autocast(values.device.type, enabled=False):
        change = changes.to(exact).transpose(0, 1)
        gram = change @ change.mT
        size = gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] + 1e-12
        eye = torch.eye(gram.shape[1], device=gram.device, dtype=exact)
        weights = _solve(gram / size + damping * eye)
        weights = weights / weights.sum(1, keepdim=True)
        return (weights.T[:, :, None] * values.to(exact)).sum(0).to(values.dtype)


def _solve(matrix: Tensor) -> Tensor:
    """Solution of A x = 1 for small positive definite A. [B,M,M] -> [B,M]

    Elimination written out: LAPACK's routines wait for the GPU.
    """
    system = torch.cat([matrix, torch.ones_like(matrix[:, :, :1])], 2)
    for row in range(matrix.shape[1]):
        pivot = system[:, row : row + 1] / system[:, row : row + 1, row : row + 1]
        system = system - system[:, :, row : row + 1] * pivot
        system[:, row : row + 1] = pivot
    return system[:, :, -1]


def fixed_point(
    f: Callable[[Tensor], Tensor],
    start: Tensor,
    solver: Solver = STANDARD,
    alone: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Fixed point of f with the gradient of the implicit function.

    start [B,N] -> (state [B,N], relative change of each row in its best step [B]). Parameters and
    inputs that f closes over get their gradients. alone: f with a gradient to its argument alone,
    which makes the backward iteration cheaper

    >>> state, change = fixed_point(lambda x: x.cos(), torch.zeros(1, 2))
    >>> state
    tensor([[0.7391, 0.7391]])
    """
    state, _, change = anderson(f, start.detach(), solver)
    if not torch.is_grad_enabled():
        return state, change
    output = f(state)
    if not output.requires_grad:
        return output, change
    inner = state.detach().requires_grad_()
    inner_output = (alone or f)(inner)

    def implicit(gradient: Tensor) -> Tensor:
        def pull(g: Tensor) -> Tensor:
            with torch.enable_grad():
                (pulled,) = torch.autograd.grad(
                    inner_output, inner, g, retain_graph=True, allow_unused=True
                )
            return gradient if pulled is None else gradient + pulled

        if not inner_output.requires_grad:
            return gradient
        return anderson(pull, gradient, solver)[0]

    output.register_hook(implicit)
    return output, change
