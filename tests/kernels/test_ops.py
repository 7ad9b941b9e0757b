"""The operators as torch knows them: opcheck, compile, export, autocast."""

import pytest
import torch
from torch import nn

from tests.kernels.cases import CASES, DEVICE
from torchcaps.layers import EM, ConvCaps, DenseCaps
from torchcaps.routing import dynamic_routing, inverted_routing

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("no_overflow_checks")


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("dynamic", "step"),
        ("uniform", "step"),
        ("inverted-gaps", "step"),
        ("em-vector", "step"),
        ("em-conv-nine", "step"),
        ("self-matrix", "step"),
        ("dynamic-positions", "attend"),
        ("self", "combine"),
        ("self-conv", "self_route"),
    ],
)
def test_opcheck(name, operator):
    """Schema, fake shapes, autograd registration and traced backward of the operator itself."""
    case = next(c for c in CASES if c.name == name)
    tensors = [t.requires_grad_() for t in case.tensors()]
    calls = []
    original = getattr(torch.ops.torchcaps, operator)

    def spy(*arguments):
        calls.append(arguments)
        return original(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.ops.torchcaps, operator, spy)
        case(tensors, "triton")
    arguments = tuple(
        a.detach().requires_grad_() if isinstance(a, torch.Tensor) else a for a in calls[-1]
    )
    torch.library.opcheck(original.default, arguments)


class Layer(nn.Module):
    def __init__(self, routing="inverted"):
        super().__init__()
        self.caps = ConvCaps(
            in_caps=3,
            in_dim=4,
            out_caps=2,
            out_dim=4,
            kernel_size=2,
            routing=routing,
            matrix=True,
            impl="triton",
        )

    def forward(self, poses):
        return self.caps(poses, poses[..., 0].sigmoid()).poses


@pytest.mark.parametrize("routing", ["inverted", EM(num_iters=2)], ids=["inverted", "em"])
def test_compile_in_one_graph(routing):
    layer = Layer(routing).to(DEVICE)
    poses = torch.randn(2, 4, 3, 3, 4, device=DEVICE, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for run in (layer, compiled):
        run(poses).square().sum().backward()
    torch.testing.assert_close(compiled(poses), layer(poses))


@pytest.mark.parametrize("routing", ["inverted", EM(num_iters=2)], ids=["inverted", "em"])
def test_export(routing):
    layer = Layer(routing).to(DEVICE).eval()
    poses = torch.randn(2, 4, 3, 3, 4, device=DEVICE)
    program = torch.export.export(layer, (poses,))
    assert "torchcaps.step" in program.graph_module.code
    torch.testing.assert_close(program.module()(poses), layer(poses))


def test_export_of_any_batch():
    layer = (
        DenseCaps(in_caps=60, in_dim=8, out_caps=10, out_dim=16, routing="self", impl="triton")
        .to(DEVICE)
        .eval()
    )
    inputs = (torch.randn(4, 60, 8, device=DEVICE), torch.rand(4, 60, device=DEVICE))
    batch = torch.export.Dim("B", max=4096)
    program = torch.export.export(layer, inputs, dynamic_shapes=({0: batch}, {0: batch}))
    more = (torch.randn(200, 60, 8, device=DEVICE), torch.rand(200, 60, device=DEVICE))
    torch.testing.assert_close(program.module()(*more)[0], layer(*more)[0])


def test_windows_compete_where_votes_are_formed():
    poses, weight = torch.randn(1, 3, 3, 2, 4), torch.randn(8, 3, 4, 4)
    query = torch.randn(1, 2, 2, 3, 4)
    arguments = [poses, weight, None, query, *[None] * 4, [2, 1, 0], "dot", False, False, True]
    arguments = [t.to(DEVICE) if isinstance(t, torch.Tensor) else t for t in arguments]
    with pytest.raises(RuntimeError, match="windows compete where votes are formed"):
        torch.ops.torchcaps.step(*arguments)


def test_combine_checks_shapes():
    shares, poses = torch.rand(2, 1, 5, 4, device=DEVICE), torch.randn(2, 4, 3, device=DEVICE)
    with pytest.raises(RuntimeError, match="divisor of C"):
        torch.ops.torchcaps.combine(shares, poses, torch.randn(3, 5, 3, 2, device=DEVICE))
    weight = torch.randn(4, 5, 3, 2, device=DEVICE, requires_grad=True)
    none = torch.ops.torchcaps.combine(shares[:0], poses[:0], weight)
    assert none.shape == (0, 5, 2)
    none.sum().backward()
    assert not weight.grad.any()


def test_autocast_casts_inputs_and_returns_float32():
    poses, weight = torch.randn(3, 7, 8, device=DEVICE), torch.randn(7, 4, 8, 8, device=DEVICE)
    exact = dynamic_routing(poses, weight, impl="triton", coupling=False)[0]
    with torch.autocast(DEVICE, torch.bfloat16):
        cast = dynamic_routing(poses, weight, impl="triton", coupling=False)[0]
    assert cast.dtype == torch.float32
    assert 0 < (cast - exact).abs().max() < 0.05


def test_no_unneeded_gradient():
    poses, weight = torch.randn(3, 7, 4, device=DEVICE), torch.randn(7, 4, 2, 2, device=DEVICE)
    weight.requires_grad_()
    inverted_routing(poses, weight, impl="triton")[0].sum().backward()
    assert poses.grad is None and weight.grad.isfinite().all()
