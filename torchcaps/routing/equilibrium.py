"""Iterating to a fixed point, with gradients that cost the memory of one step.

    z* = f(z*)                                        by Anderson acceleration, without a graph
    dL/dx = (dL/dz*) (I - df/dz)^-1 df/dx             by the same iteration on the gradient

Deep equilibrium models (Bai, Kolter, Koltun 2019); here for routing, whose passes are such an f.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Solver:
    max_iters: int = 30
    tolerance: float = 1e-3
    """The largest change in a step that counts as none, relative to the state."""
    memory: int = 5
    """Steps that the acceleration looks back at."""
    damping: float = 1e-4
    """Ridge of its least squares."""


STANDARD = Solver()


@torch.no_grad()
def anderson(
    f: Callable[[Tensor], Tensor], start: Tensor, solver: Solver = STANDARD
) -> tuple[Tensor, int, Tensor]:
    """A fixed point of f near `start` [B,N] -> (it, steps taken, relative change of each row [B])

    The next state mixes the last few, with the weights that would make the change smallest if f
    were affine; each row of the batch has its own. Where f is no contraction it may not converge:
    each row returns the value after its smallest change, which is said.
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
    moved = (value - state).float().norm(dim=1)
    return moved / (value.float().norm(dim=1) + 1e-9)


def _mix(states: list[Tensor], values: list[Tensor], damping: float) -> Tensor:
    """Weights that sum to one and minimise the length of the mixed change."""
    exact = torch.promote_types(values[0].dtype, torch.float32)
    with torch.autocast(values[0].device.type, enabled=False):
        value = torch.stack(values, 1).to(exact)
        change = value - torch.stack(states, 1).to(exact)
        gram = change @ change.mT
        size = gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] + 1e-12
        eye = torch.eye(gram.shape[1], device=gram.device, dtype=exact)
        solved = torch.linalg.solve(gram / size + damping * eye, torch.ones_like(gram[:, :, :1]))
        weights = solved / solved.sum(1, keepdim=True)
        return (weights * value).sum(1).to(values[0].dtype)


def fixed_point(
    f: Callable[[Tensor], Tensor], start: Tensor, solver: Solver = STANDARD
) -> tuple[Tensor, Tensor]:
    """A fixed point of f, with the gradient of the implicit function. start [B,N]
    -> (it [B,N], relative change of each row in the best step [B]: how near it came)

    f may close over parameters and inputs; they get their gradients.
    """
    found, _, change = anderson(f, start.detach(), solver)
    if not torch.is_grad_enabled():
        return found, change
    reached = f(found)
    if not reached.requires_grad:
        return reached, change
    inner = found.detach().requires_grad_()
    again = f(inner)

    def implicit(gradient: Tensor) -> Tensor:
        def pull(g: Tensor) -> Tensor:
            with torch.enable_grad():
                back = torch.autograd.grad(again, inner, g, retain_graph=True, allow_unused=True)[0]
            return gradient if back is None else gradient + back

        return anderson(pull, gradient, solver)[0]

    reached.register_hook(implicit)
    return reached, change
