"""The forms that benchmarks/routing.py compares are one function, tried at small sizes."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def routing(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import routing

    yield routing
    for name in ("routing", "clock"):
        sys.modules.pop(name, None)


def small(op):
    """The same row with an eighth of the children and of the parents, on a grid of 6x6."""
    poses, weight, *rest = op.shapes
    if "window" in op.options:
        types = max(1, poses[3] // 8)
        children = types * op.options["window"].kernel ** 2
        poses = (poses[0], 6, 6, types, poses[4])
    else:
        children = poses[1] // 64
        poses = (poses[0], children, poses[2])
    out = max(2, weight[1] // 8)
    assert not any(s[0] >= 0 and len(s) > 1 for s in rest)  # routes of self-routing: no contraction
    rest = [(s[0], *poses[1:-1]) if s[0] < 0 else (out,) for s in rest]
    return replace(op, shapes=[poses, (children, out, *weight[2:]), *rest], batch=2)


@pytest.mark.parametrize(
    "name",
    ["dynamic", "dynamic-196", "dynamic-conv-128", "dynamic-conv-512", "inverted", "em"],
)
def test_forms_agree(routing, name):
    op = small(routing.OPS[name])
    tensors = op.tensors(2, torch.float64, "cpu")
    tensors = [t.detach().double().requires_grad_() for t in tensors]
    outputs, grads = routing.step(lambda t: op(t, "reference"), tensors)
    assert all(t.isfinite().all() for t in (*outputs, *grads))
    if op.strongest is not None:
        found = routing.step(lambda t: op.strongest(*t, **op.options), tensors)
        for a, b in zip((*outputs, *grads), (*found[0], *found[1]), strict=True):
            torch.testing.assert_close(a.flatten(), b.flatten())
    operations, moved = op.work()
    assert operations > 0 and moved > 0


def test_names_of_rows(routing):
    """Lines are found by these names, in tables and by readers."""
    names = {op.name for op in routing.OPS.values()}
    assert {
        "dynamic 3872x8 -> 196x16", "dynamic conv 5x5, 128 px", "dynamic conv 5x5, 512 px",
        "EM conv 3x3/2",
    } <= names  # fmt: skip
    assert routing.OPS["em"].options.get("compete", "all") == "all"
