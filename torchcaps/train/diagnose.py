"""Where a loss first stopped being finite."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

NOT_FOUND = "no layer when the step was run again: the fault comes and goes"


def _finite(value: object) -> bool:
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, dict):
        return all(_finite(v) for v in value.values())
    if isinstance(value, list | tuple):
        return all(_finite(v) for v in value)
    return True


def first_bad_layer(model: nn.Module, loss: Callable[[], Tensor]) -> str:
    """Run one step with every layer watched and name the first with a number that is not finite.

    Weights first (an earlier update broke them), then outputs as they come, then gradients.
    """
    model.zero_grad()
    for name, parameter in model.named_parameters():
        if not _finite(parameter):
            return f"the weights {name}"
    found: list[str] = []

    def watch(name: str, module: nn.Module):
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            if not found and not _finite(output):
                found.append(f"the output of {name} ({type(module).__name__})")

        return module.register_forward_hook(hook)

    handles = [watch(name, module) for name, module in model.named_modules() if name]
    try:
        value = loss()
        if found:
            return found[0]
        if not _finite(value):
            return "the loss itself"
        value.backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None and not _finite(parameter.grad):
                return f"the gradient of {name}"
    finally:
        for handle in handles:
            handle.remove()
        model.zero_grad()
    return NOT_FOUND
