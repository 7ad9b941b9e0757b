"""One image on its walk through a model: where in the code, what it is, its shape and letters."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchcaps
from torchcaps.data import Dataset
from torchcaps.data.registry import entry
from torchcaps.models import CapsuleModel


@dataclass(frozen=True)
class Step:
    where: str
    what: str
    shape: tuple[int, ...]
    letters: str


def _where(thing: Callable[..., Any] | type) -> str:
    """file:line, seen from the package's folder."""
    root = Path(torchcaps.__file__).parent.parent
    path = Path(inspect.getsourcefile(thing) or "?")
    line = inspect.getsourcelines(thing)[1]
    return f"{path.relative_to(root) if path.is_relative_to(root) else path.name}:{line}"


def _what(module: nn.Module, name: str) -> str:
    if type(module).__module__.startswith("torchcaps"):
        sentence = (inspect.getdoc(type(module)) or "").split("\n")[0]
        return f"{name}: {sentence.partition('. ')[0].rstrip('.')}"
    return f"{name}: {' + '.join(str(m) for m in module.modules() if not list(m.children()))}"


@torch.no_grad()
def tour(model: CapsuleModel, data: Dataset) -> list[Step]:
    """Push the first test image through and write down each step."""
    batch = data.test.batch(slice(0, 1))
    loader = entry(data.name).load
    whole, one = tuple(data.test.images.shape), tuple(batch.images.shape)
    steps = [
        Step(_where(loader), f"load {data.name!r}, the whole test split", whole, "[N,C,H,W]"),
        Step(_where(type(data.test)), "one image of it, cast to [0,1]", one, "[B,C,H,W]"),
    ]

    def watch(name: str, module: nn.Module):
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            tensor: Tensor = output[0] if isinstance(output, tuple) else output
            own = type(module).__module__.startswith("torchcaps")
            where = _where(type(module) if own else type(model))
            letters = getattr(module, "letters", "").rpartition("-> ")[2]
            steps.append(Step(where, _what(module, name), tuple(tensor.shape), letters))
            if route := getattr(module, "function", None):
                steps.append(
                    Step(_where(route), f"in it, {route.__name__}", tuple(tensor.shape), letters)
                )

        return module.register_forward_hook(hook)

    handles = [watch(name, module) for name, module in model.named_children()]
    try:
        output = model.eval()(batch.images, coupling=True)
    finally:
        for handle in handles:
            handle.remove()
    for field in fields(output):
        tensor = getattr(output, field.name)
        if tensor is not None:
            what = f"output.{field.name}: {field.metadata['what']}"
            steps.append(
                Step(_where(type(output)), what, tuple(tensor.shape), field.metadata["letters"])
            )
    return steps
