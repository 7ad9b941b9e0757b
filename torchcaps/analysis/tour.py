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
from torchcaps.layers import Capsules
from torchcaps.models import CapsuleModel


@dataclass
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


def _ours(module: nn.Module) -> bool:
    return not type(module).__module__.startswith("torch.")


def _what(module: nn.Module, name: str) -> str:
    if _ours(module):
        sentence = (inspect.getdoc(type(module)) or type(module).__name__).split("\n")[0]
        return f"{name}: {sentence.partition('. ')[0].rstrip('.')}"
    return f"{name}: {' + '.join(str(m) for m in module.modules() if not list(m.children()))}"


class _Walk:
    """The steps of a model's parts in the order in which an image meets them, each once."""

    def __init__(self, model: CapsuleModel, steps: list[Step]):
        self.model, self.steps = model, steps
        self.calls: dict[str, int] = {}
        self.first: dict[str, Step] = {}
        self.undo: list[Callable[[], None]] = []

    def __enter__(self) -> "_Walk":
        for name, child in self.model.named_children():
            parts = child.named_children() if isinstance(child, nn.ModuleList) else [("", child)]
            for number, part in parts:
                self._watch(f"{name}.{number}".rstrip("."), part)
        return self

    def __exit__(self, *_: object) -> None:
        for undo in self.undo:
            undo()

    def _watch(self, name: str, module: nn.Module) -> None:
        handle = module.register_forward_hook(lambda m, i, output: self._add(name, module, output))
        self.undo.append(handle.remove)
        attend = getattr(module, "attend", None)
        if attend is None:
            return

        def watched(*arguments: Any, **options: Any) -> Any:  # passes do not call forward
            output = attend(*arguments, **options)
            self._add(name, module, output)
            return output

        module.attend = watched  # pyright: ignore
        self.undo.append(lambda: module.__delattr__("attend"))

    def _add(self, name: str, module: nn.Module, output: Any) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        if self.calls[name] > 1:
            step = self.first[name]
            step.what = f"{_what(module, name)}, {self.calls[name]} times"
            return
        where = _where(type(module) if _ours(module) else type(self.model).encode)
        letters = getattr(module, "letters", "").rpartition("-> ")[2]
        capsules = output if isinstance(output, Capsules) else Capsules(output)
        found = capsules.poses if capsules.poses is not None else capsules.activations
        assert isinstance(found, Tensor)
        self.first[name] = Step(where, _what(module, name), tuple(found.shape), letters)
        self.steps.append(self.first[name])
        if router := getattr(module, "router", None):
            function = getattr(router, "function", type(router))
            what = f"in it, {getattr(function, '__name__', router.name)} of {router}"
            self.steps.append(Step(_where(function), what, tuple(found.shape), letters))


@torch.no_grad()
def tour(model: CapsuleModel, data: Dataset) -> list[Step]:
    """Push the first test image through and write down each step, from the file to the drawing."""
    batch = data.test.batch(slice(0, 1))
    whole, one = tuple(data.test.images.shape), tuple(batch.images.shape)
    loader = entry(data.name).load
    steps = [
        Step(_where(loader), f"load {data.name!r}, the whole test split", whole, "[N,C,H,W]"),
        Step(_where(type(data.test)), "one image of it, cast to [0,1]", one, "[B,C,H,W]"),
    ]
    model.eval()
    with _Walk(model, steps):
        output = model.encode(batch.images)
        for field in fields(output):
            tensor = getattr(output, field.name)
            if field.name in ("logits", "scores") and tensor is not None:
                what, letters = (field.metadata[key] for key in ("what", "letters"))
                where = _where(type(model).encode)
                steps.append(Step(where, f"{field.name}: {what}", tuple(tensor.shape), letters))
        if "decode" in model.provides and output.capsules is not None:
            model.decode(output.capsules)
        draw = getattr(model, "draw", None)
        if draw is not None and "draw" in model.provides:
            draw(output.layers[-1])
    return steps
