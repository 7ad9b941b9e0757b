"""Random sizes of every fused routing against float64: outputs and every gradient.

    TORCHCAPS_SEED=7 pytest -m slow tests/kernels/test_random_shapes.py   other sizes; 0 by default
    TORCHCAPS_SEED=7 pytest -m slow "tests/kernels/test_random_shapes.py::test_on_a_gpu[31]"

Logits reach up to 50, since their rounding grows with them.
"""

import os
import random

import pytest
import torch

from tests.kernels.cases import DEVICE
from torchcaps.routing import (
    Window,
    dynamic_routing,
    em_routing,
    form_votes,
    inverted_attention_step,
    inverted_routing,
    self_routing,
    unfold,
    uniform_routing,
    vb_routing,
)

pytest.importorskip("triton")
SEED = int(os.environ.get("TORCHCAPS_SEED", "0"))
BOUNDS = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 2e-2}
"""Largest error over the largest entry of an output or gradient."""


def random_case(seed, largest):
    """Routing, its name, shapes of its tensors (a negative first size: in [0,1]) and options."""
    r = random.Random(seed)
    name = r.choice(["dynamic", "inverted", "attention", "em", "vb", "self", "uniform"])
    batch, types = r.randint(1, 5), r.randint(1, largest)
    many = r.choice([16, 32, 40]) if largest > 4 else 2 * largest
    parents = r.choice([r.randint(1, 6), r.randint(2, 3 * largest), many])
    rows, in_dim, out_dim = 1, r.randint(1, 20), r.randint(1, 20)
    if name != "self" and r.random() < 0.5 and largest > 4:
        rows, in_dim, out_dim = r.randint(2, 6), r.randint(2, 6), r.randint(2, 6)
    options, grid, children = {}, [], types
    if name in ("em", "vb", "self"):  # a variance of few votes has no digits, nor a mean of one
        children = types = max(types, 6)
    if r.random() < 0.5:
        kernel = r.randint(1, 4)
        window = Window(kernel, r.randint(1, 3), r.randint(0, 1))
        grid = [r.randint(kernel, kernel + 5), r.randint(kernel, kernel + 5)]
        types = min(types, max(1, 4 * largest // kernel**2))
        children = kernel**2 * types
        options["window"] = window
    transforms = r.choice([children, children, types, 1])
    poses = (batch, *grid, types, rows * in_dim)
    shapes = [poses, (transforms, parents, in_dim, out_dim)]
    if name in ("dynamic", "inverted", "em", "vb"):
        options["num_iters"] = r.randint(1, 3)
    if name == "attention":
        above = [options["window"].out(n) for n in grid]
        shapes.append((batch, *above, parents, rows * out_dim))
    if name in ("em", "vb", "self"):
        shapes.append((-batch, *poses[1:-1]))
    if name in ("em", "vb"):
        shapes += [(parents,), (parents,)]
        options["compete"] = r.choice(["all", "window"])
    if name == "self":
        shapes += [(transforms, in_dim, parents), (transforms, parents)]
    return ROUTES[name], name, shapes, options


def _em(poses, weight, active, beta_u, beta_a, **options):
    return em_routing(poses, active, weight, beta_u, beta_a, final_lambda=1.0, **options)


def _vb(poses, weight, active, beta_u, beta_a, **options):
    return vb_routing(poses, active, weight, beta_u, beta_a, **options)


def _self(poses, weight, active, route_weight, route_bias, **options):
    return self_routing(poses, active, weight, route_weight, route_bias, **options)


ROUTES = {
    "dynamic": dynamic_routing,
    "inverted": inverted_routing,
    "attention": inverted_attention_step,
    "em": _em,
    "vb": _vb,
    "self": _self,
    "uniform": uniform_routing,
}


def largest_logit(name, tensors, options):
    """Largest absolute logit of the last pass, in float64."""
    poses, weight, *rest = (t.double() for t in tensors)
    iters = options.get("num_iters", 3)
    if name == "attention":
        query = rest[0] / rest[0].shape[-1] ** 0.5
    elif name == "self":
        routes, bias = rest[1:]
        children = poses
        if "window" in options:
            children = unfold(poses, options["window"]).flatten(0, 2)
        groups = children.shape[1] // len(routes)
        logits = torch.einsum("bid,idj->bij", children, routes.repeat(groups, 1, 1))
        return (logits + bias.repeat(groups, 1)).abs().max().item()
    else:
        before = [iters - 1] if name == "inverted" else range(1, iters)
        given = {**options, "coupling": False, "impl": "reference"}
        routed = [ROUTES[name](poses, weight, **{**given, "num_iters": t})[0] for t in before]
        query = sum(routed) / (routed[0].shape[-1] ** 0.5 if name == "inverted" else 1)
    if "window" in options:
        poses = unfold(poses, options["window"]).flatten(0, 2)
    votes = form_votes(poses, weight)
    return torch.einsum("bije,bje->bij", votes, query.flatten(0, -3)).abs().max().item()


def check(seed, largest):
    route, name, shapes, options = random_case(seed, largest)
    precision = ("fp32", "tf32", "bf16")[seed % 3]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    g = torch.Generator().manual_seed(seed)
    tensors = [
        torch.rand((-s[0], *s[1:]), generator=g) if s[0] < 0 else torch.randn(s, generator=g)
        for s in shapes
    ]
    tensors = [t.to(DEVICE) for t in tensors]
    scaled = 3 if name == "self" else 1  # what makes the logits
    # self-routing's logits are one product, in bf16 for bf16 inputs
    target = random.Random(seed + 1).uniform(1, 5 if (name, precision) == ("self", "bf16") else 50)
    if name in ("em", "vb", "uniform") or options.get("num_iters") == 1:
        tensors[1] *= 0.5
        if name == "vb":  # whose precisions do not shrink with the votes
            tensors[1] /= shapes[1][2] ** 0.5
    else:
        low, high, base = 1e-3, 1e2, tensors[scaled]
        for _ in range(10):
            middle = (low * high) ** 0.5
            tensors[scaled] = base * middle
            small = largest_logit(name, tensors, options) < target
            low, high = (middle, high) if small else (low, middle)
        tensors[scaled] = base * low
    tensors = [t.to(dtype) for t in tensors]
    found, upstream = [], None
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    try:
        for impl in ("triton", "reference"):
            inputs = [t.double() if impl == "reference" else t for t in tensors]
            inputs = [t.detach().clone().requires_grad_() for t in inputs]
            outputs = route(*inputs, impl=impl, coupling=False, **options)
            outputs = [t for t in outputs if t is not None]
            if upstream is None:
                upstream = [torch.randn(t.shape, generator=g).to(DEVICE, t.dtype) for t in outputs]
            loss = sum(
                (t.double() * u.double()).sum() for t, u in zip(outputs, upstream, strict=True)
            )
            found.append([*outputs, *torch.autograd.grad(loss, inputs, materialize_grads=True)])
    finally:
        torch.set_float32_matmul_precision("highest")
    # a gradient that cancels has no digits of its own
    least = 1e-6 + 0.01 * max(t.abs().max().item() for t in found[1][len(upstream) :])
    for n, (kernel, exact) in enumerate(zip(*found, strict=True)):
        off = (kernel.double() - exact).abs().max().item()
        off /= max(exact.abs().max().item(), least if n >= len(upstream) else 1e-6)
        assert off < BOUNDS[precision], (
            f"TORCHCAPS_SEED={SEED}, {name} {shapes} {options} {precision}, logits up to "
            f"{target:.0f}: tensor {n} is off by {off:.1e}"
        )


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("number", range(330))
def test_on_a_gpu(number):
    check(1000 * SEED + number, largest=24)


@pytest.mark.usefixtures("no_overflow_checks")
@pytest.mark.skipif(torch.cuda.is_available(), reason="for the interpreter")
@pytest.mark.parametrize("number", range(12))
def test_in_the_interpreter(number):
    check(1000 * SEED + number, largest=3)
