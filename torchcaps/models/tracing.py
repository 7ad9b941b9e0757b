"""Trace every iteration of every routing layer in one forward pass.

The state of a routing after iteration t is the result of the same routing with t iterations. Each
layer is therefore called again with its recorded inputs, once for every number of iterations; the
last of these calls equals the forward pass itself.
"""

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchcaps.layers import Capsules
from torchcaps.layers.capsules import RoutedCaps

if TYPE_CHECKING:
    from torchcaps.models.base import Model

Passes = tuple[Capsules, ...]
"""Parents of one layer after each of its iterations, with the coupling of that iteration."""


def passes_of(layer: RoutedCaps) -> int:
    """Number of routing iterations of a layer; 1 if its routing is not iterative."""
    return int(getattr(layer.router, "num_iters", 1))


def with_passes(layer: RoutedCaps, count: int) -> RoutedCaps:
    """The same layer, sharing its parameters, with another number of routing iterations."""
    other = copy.copy(layer)
    other._forward_pre_hooks = type(layer._forward_pre_hooks)()  # without the recording hook
    if hasattr(layer.router, "num_iters"):
        other.router = replace(layer.router, num_iters=count)  # pyright: ignore
    return other


def twin(model: "Model") -> Any:
    """Copy of the modules of a model on the same tensors, to register hooks while other threads use
    the model."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(t): t for t in tensors})


@torch.no_grad()
def trace_layers(model: "Model", images: Tensor) -> tuple[Passes, ...]:
    """Iterations of every routing layer, from the lowest, in the order of the forward pass."""
    calls: list[tuple[RoutedCaps, tuple[Any, ...], dict[str, Any]]] = []

    def record(layer: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        assert isinstance(layer, RoutedCaps)
        calls.append((layer, inputs, options))

    hooked = twin(model)
    for module in hooked.modules():
        if isinstance(module, RoutedCaps):
            module.register_forward_pre_hook(record, with_kwargs=True)
    hooked.encode(images)
    layers = []
    for layer, inputs, options in list(calls):
        options = {**options, "coupling": True}
        counts = range(1, passes_of(layer) + 1)
        layers.append(tuple(with_passes(layer, n)(*inputs, **options) for n in counts))
    return tuple(layers)
