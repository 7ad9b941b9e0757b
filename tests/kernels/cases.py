"""Every fused routing on odd sizes, as functions of (tensors, impl)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchcaps.routing import (
    Window,
    dynamic_routing,
    em_routing,
    inverted_attention_step,
    inverted_routing,
    self_routing,
    uniform_routing,
    vb_routing,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass
class Case:
    name: str
    route: Any
    shapes: list[tuple[int, ...]]
    """Of poses, transforms, then the routing's own tensors; a negative first size: activations."""
    options: dict[str, Any]

    def tensors(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Uninitialised memory is NaN first, so that nothing unwritten passes."""
        if DEVICE == "cuda":
            del [torch.full((1 << 22,), torch.nan, device=DEVICE)][:]
        g = torch.Generator().manual_seed(seed)
        tensors = []
        for n, shape in enumerate(self.shapes):
            if shape[0] < 0:
                tensors.append(torch.rand((-shape[0], *shape[1:]), generator=g))
            else:
                tensors.append(torch.randn(shape, generator=g) * (0.5 if n == 1 else 1.0))
        return [t.to(DEVICE, dtype) for t in tensors]

    def __call__(self, tensors: list[Tensor], impl: str) -> tuple[Tensor, ...]:
        outputs = self.route(*tensors, impl=impl, coupling=False, **self.options)
        return tuple(t for t in outputs if t is not None)


def _em(poses, weight, active, beta_u, beta_a, **options):
    return em_routing(poses, active, weight, beta_u, beta_a, **options)


def _vb(poses, weight, active, beta_u, beta_a, **options):
    return vb_routing(poses, active, weight, beta_u, beta_a, **options)


def _self(poses, weight, active, route_weight, route_bias, **options):
    return self_routing(poses, active, weight, route_weight, route_bias, **options)


W = Window
CASES = [
    Case("dynamic", dynamic_routing, [(5, 7, 6), (7, 3, 6, 5)], {}),
    Case("dynamic-1", dynamic_routing, [(1, 1, 1), (1, 1, 1, 1)], {"num_iters": 2}),
    Case("dynamic-shared", dynamic_routing, [(5, 7, 6), (1, 3, 6, 5)], {}),
    Case("dynamic-types", dynamic_routing, [(3, 6, 4), (3, 3, 4, 5)], {}),
    Case("dynamic-positions", dynamic_routing, [(2, 140, 6), (2, 5, 6, 7)], {}),
    Case(
        "inverted-positions",  # matrix poses, several ranges of positions
        inverted_routing,
        [(2, 66, 16), (1, 3, 4, 5)],
        {},
    ),
    Case("dynamic-many", dynamic_routing, [(3, 5, 8), (5, 70, 8, 16)], {"num_iters": 2}),
    Case(
        "dynamic-conv",
        dynamic_routing,
        [(2, 5, 4, 3, 6), (27, 5, 6, 7)],
        {"window": W(3, 2, 1), "num_iters": 2},
    ),
    Case("dynamic-matrix", dynamic_routing, [(5, 7, 4), (7, 3, 2, 2)], {}),
    Case("uniform", uniform_routing, [(5, 7, 6), (7, 3, 6, 5)], {}),
    Case("uniform-conv", uniform_routing, [(2, 5, 4, 3, 6), (27, 5, 3, 7)], {"window": W(3, 2, 1)}),
    Case("uniform-conv-shared", uniform_routing, [(2, 5, 4, 3, 6), (1, 5, 6, 7)], {"window": W(2)}),
    Case("inverted", inverted_routing, [(5, 7, 6), (7, 3, 6, 5)], {}),
    Case(
        "inverted-matrix-conv",
        inverted_routing,
        [(2, 5, 4, 3, 16), (27, 5, 4, 4)],
        {"window": W(3, 2, 1)},
    ),
    Case("inverted-3x3-many", inverted_routing, [(2, 4, 9), (4, 37, 3, 3)], {"scale": False}),
    Case("inverted-6x6", inverted_routing, [(2, 4, 36), (4, 3, 6, 6)], {}),
    Case(
        "inverted-gaps",
        inverted_routing,
        [(2, 7, 5, 2, 4), (8, 3, 2, 2)],
        {"window": W(2, 3)},
    ),
    Case(
        "attention-conv",
        inverted_attention_step,
        [(2, 5, 4, 3, 16), (27, 5, 4, 4), (2, 3, 2, 5, 16)],
        {"window": W(3, 2, 1)},
    ),
    Case("attention-shared", inverted_attention_step, [(3, 9, 5), (1, 4, 5, 5), (3, 4, 5)], {}),
    Case(
        "em-conv",
        _em,
        [(2, 5, 4, 3, 16), (27, 5, 4, 4), (-2, 5, 4, 3), (5,), (5,)],
        {"window": W(3, 2, 1), "final_lambda": 1.0},
    ),
    Case(
        "em-conv-damped",  # as the authors' program, but for the competition
        _em,
        [(2, 5, 4, 1, 9), (9, 3, 3, 3), (-2, 5, 4, 1), (3,), (3,)],
        {
            "window": W(3, 2, 1),
            "final_lambda": 1.0,
            "damping": 0.1,
            "log_variance": True,
            "mass_floor": 1e-5,
        },
    ),
    Case(
        "em-conv-window",
        _em,
        [(2, 5, 4, 3, 16), (27, 5, 4, 4), (-2, 5, 4, 3), (5,), (5,)],
        {"window": W(3, 2, 1), "final_lambda": 1.0, "compete": "window", "num_iters": 2},
    ),
    Case(
        "em-conv-nine",  # windows of an inner child
        _em,
        [(2, 5, 5, 1, 4), (9, 3, 2, 2), (-2, 5, 5, 1), (3,), (3,)],
        {"window": W(3, 1), "final_lambda": 1.0, "num_iters": 2},
    ),
    Case(
        "em-conv-many",  # several blocks of parents, vectors, children that no window covers
        _em,
        [(1, 6, 4, 1, 6), (9, 70, 6, 10), (-1, 6, 4, 1), (70,), (70,)],
        {"window": W(3, 2), "num_iters": 2},
    ),
    Case(
        "em-conv-shared",
        _em,
        [(1, 4, 4, 2, 9), (2, 5, 3, 3), (-1, 4, 4, 2), (5,), (5,)],
        {"window": W(2, 1, 1), "num_iters": 2},
    ),
    Case(
        "em-conv-once",  # the first assignments alone
        _em,
        [(1, 5, 5, 1, 4), (9, 3, 2, 2), (-1, 5, 5, 1), (3,), (3,)],
        {"window": W(3, 1, 1), "num_iters": 1, "final_lambda": 1.0},
    ),
    Case(
        "em-vector", _em, [(3, 11, 6), (11, 3, 6, 5), (-3, 11), (3,), (3,)], {"final_lambda": 1.0}
    ),
    Case("em-many", _em, [(2, 24, 16), (24, 18, 4, 4), (-2, 24), (18,), (18,)], {"num_iters": 2}),
    Case("em-off", _em, [(1, 5, 36), (5, 2, 6, 6), (-1, 5), (2,), (2,)], {"num_iters": 2}),
    Case("em-few", _em, [(2, 4, 16), (4, 8, 4, 4), (-2, 4), (8,), (8,)], {}),
    Case("vb", _vb, [(3, 11, 6), (11, 3, 6, 5), (-3, 11), (3,), (3,)], {}),
    Case(
        "vb-conv",
        _vb,
        [(1, 5, 4, 2, 9), (18, 4, 3, 3), (-1, 5, 4, 2), (4,), (4,)],
        {"window": W(3, 2, 1), "num_iters": 2},
    ),
    Case(
        "vb-conv-once",
        _vb,
        [(1, 4, 4, 1, 4), (9, 3, 2, 2), (-1, 4, 4, 1), (3,), (3,)],
        {"window": W(3, 1), "num_iters": 1, "compete": "window"},
    ),
    Case("wide", dynamic_routing, [(2, 3, 64), (3, 2, 64, 64)], {"num_iters": 2}),
    Case("self", _self, [(3, 7, 6), (7, 5, 6, 3), (-3, 7), (7, 6, 5), (7, 5)], {}),
    Case(
        "self-conv-many",
        _self,
        [(1, 4, 3, 1, 6), (9, 34, 6, 16), (-1, 4, 3, 1), (9, 6, 34), (9, 34)],
        {"window": W(3, 2, 1)},
    ),
    Case(
        "self-conv-pointwise",
        _self,
        [(5, 7, 3, 3, 6), (3, 34, 6, 17), (-5, 7, 3, 3), (3, 6, 34), (3, 34)],
        {"window": W(1)},
    ),
    Case(
        "self-conv",  # blocks of children that end amid a position's
        _self,
        [(2, 5, 6, 3, 6), (27, 5, 6, 7), (-2, 5, 6, 3), (27, 6, 5), (27, 5)],
        {"window": W(3, 2, 1)},
    ),
    Case(
        "self-conv-shared",  # transforms of three types, children that no window covers
        _self,
        [(2, 6, 5, 3, 4), (3, 5, 4, 16), (-2, 6, 5, 3), (3, 4, 5), (3, 5)],
        {"window": W(2, 3)},
    ),
    Case("self-types", _self, [(3, 6, 5), (2, 9, 5, 3), (-3, 6), (2, 5, 9), (2, 9)], {}),
    Case(
        "self-types-many",  # blocks of children that end amid a group
        _self,
        [(3, 40, 16), (5, 7, 16, 9), (-3, 40), (5, 16, 7), (5, 7)],
        {},
    ),
    Case("self-tiny", _self, [(1, 2, 1), (2, 2, 1, 1), (-1, 2), (2, 1, 2), (2, 2)], {}),
    Case("self-matrix", _self, [(3, 7, 9), (7, 5, 3, 3), (-3, 7), (7, 9, 5), (7, 5)], {}),
]
