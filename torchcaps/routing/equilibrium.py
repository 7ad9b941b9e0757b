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
    """
    states, values = [start], [f(start)]
    best, least = values[0], _change(start, values[0])
    steps = 1
    while steps < solver.max_iters and float(least.max()) >= solver.tolerance:
        state = _mix(states, values, solver.damping) if len(states) > 1 else values[0]
        value = f(state)
        steps += 1
        change = _change(state, value)
        better = change < least
        best, least = torch.where(better[:, None], value, best), torch.where(better, change, least)
        states, values = [*states, state][-solver.memory :], [*values, value][-solver.memory :]
    return best, steps, least


def _change(state: Tensor, value: Tensor) -> Tensor:
    """Relative change of each row. -> [B]"""
    distance = (value - state).float().norm(dim=1)
    return distance / (value.float().norm(dim=1) + 1e-9)


def _mix(states: list[Tensor], values: list[Tensor], damping: float) -> Tensor:
    """Mix values with weights that sum to one and minimize the length of the mixed change."""
    exact = torch.promote_types(values[0].dtype, torch.float32)
    with torch.autocast(values[0].device.type, enabled=False):
        value = torch.stack(values, 1).to(exact)
        change = value - torch.stack(states, 1).to(exact)
        gram = change @ change.mT
        size = gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] + 1e-12
        eye = torch.eye(gram.shape[1], device=gram.device, dtype=exact)
        weights = torch.linalg.solve(gram / size + damping * eye, torch.ones_like(gram[:, :, :1]))
        weights = weights / weights.sum(1, keepdim=True)
        return (weights * value).sum(1).to(values[0].dtype)


def fixed_point(
    f: Callable[[Tensor], Tensor], start: Tensor, solver: Solver = STANDARD
) -> tuple[Tensor, Tensor]:
    """Fixed point of f with the gradient of the implicit function.

    start [B,N] -> (state [B,N], relative change of each row in its best step [B]). Parameters and
    inputs that f closes over get their gradients.

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
    inner_output = f(inner)

    def implicit(gradient: Tensor) -> Tensor:
        def pull(g: Tensor) -> Tensor:
            with torch.enable_grad():
                (pulled,) = torch.autograd.grad(
                    inner_output, inner, g, retain_graph=True, allow_unused=True
                )
            return gradient if pulled is None else gradient + pulled

        return anderson(pull, gradient, solver)[0]

    output.register_hook(implicit)
    return output, change
