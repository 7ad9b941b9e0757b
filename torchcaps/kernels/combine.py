"""`torch.ops.torchcaps.combine`: the sum of votes with given shares, as an operator of torch.

    combine(shares [B,C/N,J,N], poses [B,C,D], weight [N,J,D,E]) -> [B,J,E], float32

Child c uses transform c modulo N, and is number c modulo N of group c / N of the shares: so their
logits lie in memory as one product with all transforms makes them. All three have one dtype and
get gradients; memory holds them and the sums, never a vote.
"""

import torch
from torch import Tensor


def _check(shares: Tensor, poses: Tensor, weight: Tensor) -> None:
    batch, children, in_dim = poses.shape
    num, parents = weight.shape[:2]
    groups = shares.shape == (batch, children // num, parents, num)
    fits = groups and weight.shape[2] == in_dim and children % num == 0
    alike = shares.dtype == poses.dtype == weight.dtype
    torch._check(
        fits and alike,
        lambda: (
            "combine takes shares [B,C/N,J,N], poses [B,C,D] and weight [N,J,D,E] of one dtype, N "
            f"a divisor of C; not {[list(t.shape) for t in (shares, poses, weight)]}."
        ),
    )


@torch.library.custom_op("torchcaps::combine", mutates_args=())
def combine(shares: Tensor, poses: Tensor, weight: Tensor) -> Tensor:
    _check(shares, poses, weight)
    from torchcaps.kernels import launch_shares  # needs Triton, which a CPU build of torch lacks

    with torch.cuda.device_of(poses):
        return launch_shares.forward(*(t.contiguous() for t in (shares, poses, weight)))


@combine.register_fake
def _(shares, poses, weight):
    _check(shares, poses, weight)
    return poses.new_empty((poses.shape[0], *weight.shape[1::2]), dtype=torch.float32)


@torch.library.custom_op("torchcaps::combine_backward", mutates_args=())
def combine_backward(
    grad: Tensor, shares: Tensor, poses: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    from torchcaps.kernels import launch_shares

    made = (t.contiguous() for t in (grad, shares, poses, weight))
    with torch.cuda.device_of(poses):
        return launch_shares.backward(*made)


@combine_backward.register_fake
def _(grad, shares, poses, weight):
    return tuple(t.new_empty(t.shape) for t in (shares, poses, weight))


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _differentiate(ctx, grad):
    # cast here, where a compiler may fuse it with what made it
    shares, poses, weight = ctx.saved_tensors
    return torch.ops.torchcaps.combine_backward(grad.to(poses.dtype), shares, poses, weight)


combine.register_autograd(_differentiate, setup_context=_save)
