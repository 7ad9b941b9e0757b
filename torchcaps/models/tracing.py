"""Every pass of every routing of one forward, by the layers themselves.

A routing of T passes stands after its pass t where the same routing of t passes ends. So a layer is
called again with what it was given, once for every number of passes; the last of these calls is the
forward's own.
"""

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchcaps.layers import Capsules
from torchcaps.layers.routed import RoutedCaps

if TYPE_CHECKING:
    from torchcaps.models.base import CapsuleModel

Passes = tuple[Capsules, ...]
"""Parents of one layer after each of its passes, with the coupling of that pass."""


def passes_of(layer: RoutedCaps) -> int:
    """How often a layer's routing passes; one where nothing is repeated."""
    return int(getattr(layer.router, "num_iters", 1))


def with_passes(layer: RoutedCaps, count: int) -> RoutedCaps:
    """The same layer, its parameters too, with another number of passes."""
    other = copy.copy(layer)
    other._forward_pre_hooks = type(layer._forward_pre_hooks)()  # nobody listens to this one
    if hasattr(layer.router, "num_iters"):
        other.router = replace(layer.router, num_iters=count)  # pyright: ignore
    return other


def twin(model: "CapsuleModel") -> Any:
    """The same model as modules of their own on the same tensors, to be listened to while others
    call the model."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(t): t for t in tensors})


@torch.no_grad()
def trace_layers(model: "CapsuleModel", images: Tensor) -> tuple[Passes, ...]:
    """Passes of every layer that routes, from the lowest, as the model's forward calls them."""
    calls: list[tuple[RoutedCaps, tuple[Any, ...], dict[str, Any]]] = []

    def seen(layer: nn.Module, given: tuple[Any, ...], options: dict[str, Any]) -> None:
        assert isinstance(layer, RoutedCaps)
        calls.append((layer, given, options))

    listened = twin(model)
    for module in listened.modules():
        if isinstance(module, RoutedCaps):
            module.register_forward_pre_hook(seen, with_kwargs=True)
    listened.encode(images)
    found = []
    for layer, given, options in list(calls):
        options = {**options, "coupling": True}
        counts = range(1, passes_of(layer) + 1)
        found.append(tuple(with_passes(layer, n)(*given, **options) for n in counts))
    return tuple(found)
