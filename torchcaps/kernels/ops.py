"""The fused step as operators that torch knows: autograd, compile, export and CUDA graphs.

`torch.ops.torchcaps.step` takes a grid of child poses [B,H,W,I,R*D], transforms [N,J,D,E] (child c
uses number c modulo N) and the score's own tensors, and returns sums over children for each parent:
shares [B,H',W',J], votes and squares [B,H',W',J,R*E]; log-denominators for the way back; and on
request shares of every child before its activation [B,H',W',J,C], without a gradient. What a score
does not use is empty.

`across`: shares of a child sum to one over the parents of all windows that see it, not of each
window by itself. For the kernels that form votes.
"""

from typing import Any

import torch
from torch import Tensor


def _shape(poses: Tensor, weight: Tensor, window: list[int]):
    from torchcaps.kernels.shape import Shape  # needs Triton, which a CPU build of torch lacks

    batch, height, width, types, dim = poses.shape
    transforms, parents, in_dim, out_dim = weight.shape
    kernel, stride, padding = window
    rows = dim // in_dim
    return Shape(
        batch, height, width, types, kernel, stride, padding, rows, in_dim, parents, out_dim,
        transforms,
    )  # fmt: skip


def _parents(poses: Tensor, weight: Tensor, window: list[int]) -> tuple[list[int], int]:
    kernel, stride, padding = window
    batch, height, width, _, dim = poses.shape
    grid = [(side + 2 * padding - kernel) // stride + 1 for side in (height, width)]
    return [batch, *grid, weight.shape[1]], dim // weight.shape[2] * weight.shape[3]


def _sees_votes(shape, score: str) -> bool:
    """Which kernels serve it: those that form votes, or those that need not. See docs/gpu.md."""
    return score == "gauss" or (score == "dot" and shape.pose_rows > 1)


def _forward(
    shape, poses, weight, activations, query, precision, bias, route_weight, route_bias,
    score: str, with_coupling: bool, across: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    inputs = (poses, weight, activations, query, precision, bias, route_weight, route_bias)
    x, w, a, q, h, b, wr, br = _contiguous(inputs)
    with torch.cuda.device_of(poses):
        if _sees_votes(shape, score):
            from torchcaps.kernels import launch_votes

            return launch_votes.forward(shape, score, x, w, a, q, h, b, with_coupling, across)
        from torchcaps.kernels import launch_attention

        sum0, sum1, lse, coupling = launch_attention.forward(
            shape, score, x, w, a, q, wr, br, with_coupling
        )
    return sum0, sum1, sum1.new_empty(0), lse, coupling


@torch.library.custom_op("torchcaps::step", mutates_args=())
def step(
    poses: Tensor,
    weight: Tensor,
    activations: Tensor | None,
    query: Tensor | None,
    precision: Tensor | None,
    bias: Tensor | None,
    route_weight: Tensor | None,
    route_bias: Tensor | None,
    window: list[int],
    score: str,
    deterministic: bool,
    with_coupling: bool,
    across: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    shape = _shape(poses, weight, window)
    torch._check(
        not across or _sees_votes(shape, score),
        lambda: f"windows compete where votes are formed, and the score {score} forms none here.",
    )
    sum0, sum1, sum2, lse, coupling = _forward(
        shape, poses, weight, activations, query, precision, bias, route_weight, route_bias,
        score, with_coupling, across,
    )  # fmt: skip
    parents, dim = _parents(poses, weight, window)
    return (
        sum0.view(parents) if sum0.numel() else sum0,
        sum1.view(*parents, dim),
        sum2.view(*parents, dim) if sum2.numel() else sum2,
        lse,
        coupling.view(*parents, shape.children) if with_coupling else coupling,
    )


def _contiguous(tensors: tuple[Tensor | None, ...]) -> list[Any]:
    return [t if t is None else t.contiguous() for t in tensors]


@step.register_fake
def _(poses, weight, activations, *rest):
    *_, window, score, _deterministic, with_coupling, _across = rest
    parents, dim = _parents(poses, weight, window)
    shape = _shape(poses, weight, window)
    new = lambda *size: poses.new_empty(size, dtype=torch.float32)  # noqa: E731
    return (
        new(*parents) if activations is not None else new(0),
        new(*parents, dim),
        new(*parents, dim) if score == "gauss" else new(0),
        new(shape.rows, shape.children) if score != "uniform" else new(0),
        new(*parents, shape.children) if with_coupling else new(0),
    )


@torch.library.custom_op("torchcaps::step_backward", mutates_args=())
def step_backward(
    grad0: Tensor,
    grad1: Tensor,
    grad2: Tensor,
    lse: Tensor,
    poses: Tensor,
    weight: Tensor,
    activations: Tensor | None,
    query: Tensor | None,
    precision: Tensor | None,
    bias: Tensor | None,
    route_weight: Tensor | None,
    route_bias: Tensor | None,
    window: list[int],
    score: str,
    deterministic: bool,
    across: bool,
) -> list[Tensor]:
    inputs = (poses, weight, activations, query, precision, bias, route_weight, route_bias)
    x, w, a, q, h, b, wr, br = _contiguous(inputs)
    g0, g1, g2 = grad0.contiguous(), grad1.contiguous(), grad2.contiguous()
    shape = _shape(poses, weight, window)
    with torch.cuda.device_of(poses):
        if _sees_votes(shape, score):
            from torchcaps.kernels import launch_votes

            found = launch_votes.backward(
                shape, score, deterministic, (g0, g1, g2), lse, x, w, a, q, h, b, across
            )
            found = (*found, lse, lse)
        else:
            from torchcaps.kernels import launch_attention

            dx, dw, da, dq, *routes = launch_attention.backward(
                shape, score, deterministic, g0, g1, lse, x, w, a, q, wr, br
            )
            found = (dx, dw, da, dq, lse, lse, *routes)
    return [
        poses.new_empty(0, dtype=torch.float32)
        if t is None
        else g.to(t.dtype).reshape(t.shape).contiguous()
        for g, t in zip(found, inputs, strict=True)
    ]


@step_backward.register_fake
def _(grad0, grad1, grad2, lse, *rest):
    poses, inputs = rest[0], rest[:8]
    return [
        poses.new_empty((0,), dtype=torch.float32) if t is None else t.new_empty(t.shape)
        for t in inputs
    ]


def _save(ctx, inputs, output):
    ctx.save_for_backward(output[3], *inputs[:8])
    *options, _with_coupling, across = inputs[8:]
    ctx.options = (*options, across)
    ctx.given = [t is not None for t in inputs[:8]]


def _differentiate(ctx, grad0, grad1, grad2, *_):
    lse, *tensors = ctx.saved_tensors
    grads = torch.ops.torchcaps.step_backward(grad0, grad1, grad2, lse, *tensors, *ctx.options)
    return *(g if given else None for g, given in zip(grads, ctx.given, strict=True)), *[None] * 5


step.register_autograd(_differentiate, setup_context=_save)
