"""Pure float16 and empty batches through every routing: finite outputs and gradients."""

import pytest
import torch

from torchcaps.functional import safe_norm, squash
from torchcaps.layers import ConvCaps, DenseCaps, PointwiseCaps
from torchcaps.layers.capsules import ClassCaps
from torchcaps.layers.routers import ROUTERS

SIZES = {"in_caps": 6, "in_dim": 4, "out_caps": 3, "out_dim": 4}
LAYERS = {
    "dense": (DenseCaps, ()),
    "conv": (ConvCaps, (4, 4)),
    "pointwise": (PointwiseCaps, (2,)),
}


def routed(kind, routing, batch, scale, dtype):
    """Outputs of a layer, and the gradients of their sum. -> tensors by name"""
    layer_class, grid = LAYERS[kind]
    layer = layer_class(**SIZES, routing=routing).to(dtype)
    poses = (scale * torch.randn(batch, *grid, 6, 4)).to(dtype).requires_grad_()
    active = poses.new_full((batch, *grid, 6), float(scale > 0)).requires_grad_()
    out = layer(poses, active if layer.router.activations else None, coupling=True)
    tensors = {n: t for n, t in out._asdict().items() if t is not None}
    sum(t.float().square().sum() for t in tensors.values()).backward()  # pyright: ignore
    grads = {**dict(layer.named_parameters()), "in poses": poses, "in activations": active}
    return tensors | {f"d {n}": t.grad for n, t in grads.items() if t.grad is not None}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("routing", sorted(ROUTERS))
def test_every_routing_is_finite_in_float16(routing, kind):
    for scale in (0, 1e-4, 1, 30):
        torch.manual_seed(0)
        for name, tensor in routed(kind, routing, 2, scale, torch.float16).items():
            assert tensor.dtype == torch.float16, name
            assert torch.isfinite(tensor).all(), (name, scale)


@pytest.mark.parametrize("routing", sorted(ROUTERS))
def test_float16_gives_what_float32_gives(routing):
    half, full = (
        (torch.manual_seed(0), routed("dense", routing, 2, 1, d))[1]
        for d in (torch.float16, torch.float32)
    )
    for name in ("poses", "coupling"):
        torch.testing.assert_close(half[name].float(), full[name], atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("routing", sorted(ROUTERS))
def test_no_image_gives_no_parent(routing, kind):
    out = routed(kind, routing, 0, 1, torch.float32)
    assert out["poses"].shape[0] == 0 and out["poses"].shape[-2:] == (3, 4)


def test_the_length_of_nothing_has_a_gradient_in_float16():
    for function in (safe_norm, squash):
        zero = torch.zeros(2, 4, dtype=torch.float16, requires_grad=True)
        result = function(zero)
        assert result.dtype == torch.float16
        result.sum().backward()
        assert zero.grad is not None and torch.isfinite(zero.grad).all()
    large = torch.full((1, 4), 1000.0, dtype=torch.float16)
    assert float(safe_norm(large)) == 2000 and torch.isfinite(squash(large)).all()


def test_class_capsules_are_finite_in_float16():
    layer = ClassCaps(in_caps=6, in_dim=4, num_classes=3).half()
    poses = torch.zeros(2, 5, 6, 4, dtype=torch.float16, requires_grad=True)
    active = torch.zeros(2, 5, 6, dtype=torch.float16, requires_grad=True)
    shares = layer(poses, active).activations
    shares.float().sum().backward()
    for tensor in (shares, poses.grad, active.grad, layer.route_weight.grad):
        assert torch.isfinite(tensor).all()
