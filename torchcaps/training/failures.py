"""Errors that end a run, as messages that say how to resume it; where a loss became NaN."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from torchcaps.errors import TorchcapsError

_LOST_PROCESS = (
    "gloo",
    "nccl",
    "connection",
    "peer",
    "broken pipe",
    "socket",
    "process group",
    "store",
)
"""Words in torch's errors when another process of the run has ended."""


@contextmanager
def explain_failures(folder: Path, processes: int) -> Iterator[None]:
    """Explain a full disk and a lost process; other errors pass unchanged."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TorchcapsError(
            f"{folder}: stopped ({reason}). Fix it, then run: torchcaps resume {folder}"
        ) from None
    except RuntimeError as error:
        if processes < 2 or not any(word in str(error).lower() for word in _LOST_PROCESS):
            raise
        raise TorchcapsError(
            f"{folder}: stopped, because another of its {processes} processes ended. Resume with "
            f"as many: torchrun --nproc-per-node {processes} -m torchcaps.cli resume {folder}"
        ) from None


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
    problems: list[str] = []

    def watch(name: str, module: nn.Module):
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            if not problems and not _finite(output):
                problems.append(f"the output of {name} ({type(module).__name__})")

        return module.register_forward_hook(hook)

    handles = [watch(name, module) for name, module in model.named_modules() if name]
    try:
        value = loss()
        if problems:
            return problems[0]
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
