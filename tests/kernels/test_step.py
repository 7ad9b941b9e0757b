"""Kernel against reference: outputs and every gradient. Without a GPU, in Triton's interpreter."""

import pytest
import torch

from tests.kernels.cases import CASES, DEVICE
from torchcaps.errors import TorchcapsError
from torchcaps.routing import Window, dynamic_routing, inverted_routing

pytest.importorskip("triton")
quick = pytest.mark.usefixtures("no_overflow_checks")
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}


def both(case, dtype):
    """Outputs and gradients of (kernel, float64 reference) for the same numbers."""
    results = []
    tensors = case.tensors(dtype=dtype)
    upstream = None
    for impl in ("triton", "reference"):
        inputs = [t.double() if impl == "reference" else t for t in tensors]
        inputs = [t.detach().clone().requires_grad_() for t in inputs]
        outputs = case(inputs, impl)
        if upstream is None:
            upstream = [torch.randn_like(t, dtype=torch.float32) for t in outputs]
        loss = sum((t.double() * u).sum() for t, u in zip(outputs, upstream, strict=True))
        results.append([*outputs, *torch.autograd.grad(loss, inputs)])
    return zip(*results, strict=True)


def off(a, b):
    return ((a.double() - b).norm() / b.norm().clamp_min(1e-9)).item()


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_outputs_and_every_gradient(case):
    for n, (kernel, reference) in enumerate(both(case, torch.float32)):
        assert kernel.shape == reference.shape
        assert off(kernel, reference) < TOLERANCE[torch.float32], f"tensor {n}"


@quick
@pytest.mark.parametrize(
    "case",
    [c for c in CASES if "conv" in c.name or "positions" in c.name],
    ids=lambda c: c.name,
)
def test_bfloat16(case):
    for n, (kernel, reference) in enumerate(both(case, torch.bfloat16)):
        assert off(kernel, reference) < TOLERANCE[torch.bfloat16], f"tensor {n}"


@quick
@pytest.mark.parametrize(
    "name",
    [
        "dynamic", "inverted-matrix-conv", "self", "self-types", "self-conv",
        "em-conv", "em-conv-window", "em-conv-nine", "em-conv-once", "vb", "vb-conv",
    ],
)  # fmt: skip
def test_coupling(name):
    case = next(c for c in CASES if c.name == name)
    tensors = case.tensors()
    coupling = case.route(*tensors, impl="triton", coupling=True, **case.options)[-1]
    expected = case.route(*tensors, impl="reference", coupling=True, **case.options)[-1]
    torch.testing.assert_close(coupling, expected, atol=1e-5, rtol=1e-4)


@quick
@pytest.mark.parametrize(
    "name",
    [
        "dynamic-positions",
        "dynamic-conv",
        "inverted-matrix-conv",
        "self-conv-many",
        "em-conv-shared",
    ],
)
def test_deterministic_on_request(name):
    case = next(c for c in CASES if c.name == name)
    runs = []
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(2):
            inputs = [t.requires_grad_() for t in case.tensors()]
            runs.append(torch.autograd.grad(sum(t.sum() for t in case(inputs, "triton")), inputs))
    finally:
        torch.use_deterministic_algorithms(False)
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)
    inputs = [t.requires_grad_() for t in case.tensors()]
    free = torch.autograd.grad(sum(t.sum() for t in case(inputs, "triton")), inputs)
    for a, b in zip(runs[0], free, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@quick
def test_self_routing_stores_couplings_up_to_the_budget():
    """Stored couplings have gradients; above the budget the kernel forms them and has none."""
    case = next(c for c in CASES if c.name == "self")
    inputs = [t.requires_grad_() for t in case.tensors()]
    size = 4 * 3 * 7 * 5  # float32 of 3 images, 7 children, 5 parents
    stored = case.route(*inputs, impl="triton", budget=size)
    formed = case.route(*inputs, impl="triton", budget=size - 1)
    assert stored[2].requires_grad and not formed[2].requires_grad
    for a, b in zip(stored, formed, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_gradients_on_demand():
    """A gradient is the same whichever others are computed."""
    for name in ("dynamic-conv", "inverted-matrix-conv", "em-few"):
        case = next(c for c in CASES if c.name == name)
        tensors = [t.requires_grad_() for t in case.tensors()]
        every = torch.autograd.grad(sum(t.sum() for t in case(tensors, "triton")), tensors)
        for n, expected in enumerate(every[:2]):
            alone = [t.detach().requires_grad_(m == n) for m, t in enumerate(tensors)]
            loss = sum(t.sum() for t in case(alone, "triton"))
            (found,) = torch.autograd.grad(loss, alone[n])
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_too_little_shared_memory(monkeypatch):
    from torchcaps.kernels import plans

    monkeypatch.setattr(plans, "shared_memory", lambda: 65_536)
    poses = torch.randn(1, 3, 8 * 128, device=DEVICE)
    weight = torch.randn(3, 2, 128, 16, device=DEVICE)
    message = "8 rows with transforms of 128x16 need 160 KB of shared memory, and this GPU has 64"
    with pytest.raises(TorchcapsError, match=message):
        inverted_routing(poses, weight, impl="triton")


def test_strided_inputs():
    poses = torch.randn(6, 7, 5, device=DEVICE).transpose(0, 2)
    weight = torch.randn(4, 7, 3, 6, device=DEVICE).transpose(0, 1).transpose(2, 3)
    parents = dynamic_routing(poses, weight, 2, impl="triton")[0]
    torch.testing.assert_close(
        parents, dynamic_routing(poses, weight, 2, impl="reference")[0], atol=1e-5, rtol=1e-4
    )


@quick
def test_twenty_steps_have_one_loss_curve():
    curves = []
    for impl in ("triton", "reference"):
        torch.manual_seed(0)
        poses = torch.randn(3, 3, 3, 1, 4, device=DEVICE)
        target = torch.randn(3, 2, 2, 3, 4, device=DEVICE)
        weight = torch.randn(4, 3, 2, 2, device=DEVICE).requires_grad_()
        optimizer = torch.optim.SGD([weight], 0.05)
        curve = []
        for _ in range(20):
            parents, _ = inverted_routing(
                poses, weight, window=Window(2), impl=impl, coupling=False
            )
            loss = (parents - target).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        curves.append(curve)
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)
    assert curves[0][-1] < curves[0][0]


def test_reasons_for_the_reference(monkeypatch):
    """Sizes alone decide, so tensors without data ask."""
    from torchcaps.routing import step

    monkeypatch.setattr(step, "why_no_kernel", lambda device: "")

    def reason(poses, weight):
        tensors = (torch.empty(*shape, device="meta") for shape in (poses, weight))
        return step._why_not(*tensors, Window(2))

    assert not reason((64, 3, 4), (3, 2, 4, 4)) and not reason((64, 3, 32), (3, 2, 4, 4))
    assert "more than 8 rows" in reason((64, 3, 36), (3, 2, 4, 4))
    many = 2**27
    assert not reason((1, 3, 4), (3, many // 8, 4, 4))
    assert "2^31" in reason((64, 9, 9, 3, 4), (12, many // 256, 4, 4))
    assert not reason((64, 3, 4), (12, many // 256, 4, 4))
