"""The steps of one image through a model: source line, description, shape and its letters."""

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
from torchcaps.models import Model


@dataclass
class Step:
    """One step of a tour."""

    where: str
    what: str
    shape: tuple[int, ...]
    letters: str


def _source_line(thing: Callable[..., Any] | type) -> str:
    """file:line, relative to the package's folder."""
    root = Path(torchcaps.__file__).parent.parent
    path = Path(inspect.getsourcefile(thing) or "?")
    line = inspect.getsourcelines(thing)[1]
    return f"{path.relative_to(root) if path.is_relative_to(root) else path.name}:{line}"


def _is_custom(module: nn.Module) -> bool:
    return not type(module).__module__.startswith("torch.")


def _describe(module: nn.Module, name: str) -> str:
    if _is_custom(module):
        sentence = (inspect.getdoc(type(module)) or type(module).__name__).split("\n")[0]
        return f"{name}: {sentence.partition('. ')[0].rstrip('.')}"
    return f"{name}: {' + '.join(str(m) for m in module.modules() if not list(m.children()))}"


class _Recorder:
    """Record each module of a model once, in the order of the forward pass."""

    def __init__(self, model: Model, steps: list[Step]):
        self.model, self.steps = model, steps
        self.calls: dict[str, int] = {}
        self.first: dict[str, Step] = {}
        self.undo: list[Callable[[], None]] = []

    def __enter__(self) -> "_Recorder":
        for name, child in self.model.named_children():
            is_list = isinstance(child, nn.ModuleList)
            for number, module in child.named_children() if is_list else [("", child)]:
                self._watch(f"{name}.{number}".rstrip("."), module)
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

        def recorded(*arguments: Any, **options: Any) -> Any:  # routing passes do not call forward
            output = attend(*arguments, **options)
            self._add(name, module, output)
            return output

        module.attend = recorded  # pyright: ignore
        self.undo.append(lambda: module.__delattr__("attend"))

    def _add(self, name: str, module: nn.Module, output: Any) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        if self.calls[name] > 1:
            step = self.first[name]
            step.what = f"{_describe(module, name)}, {self.calls[name]} times"
            return
        where = _source_line(type(module) if _is_custom(module) else type(self.model).encode)
        letters = getattr(module, "letters", "").rpartition("-> ")[2]
        capsules = output if isinstance(output, Capsules) else Capsules(output)
        tensor = capsules.poses if capsules.poses is not None else capsules.activations
        assert isinstance(tensor, Tensor)
        self.first[name] = Step(where, _describe(module, name), tuple(tensor.shape), letters)
        self.steps.append(self.first[name])
        if router := getattr(module, "router", None):
            function = getattr(router, "function", type(router))
            what = f"in it, {getattr(function, '__name__', router.name)} of {router}"
            self.steps.append(Step(_source_line(function), what, tuple(tensor.shape), letters))


@torch.no_grad()
def tour(model: Model, data: Dataset) -> list[Step]:
    """Pass the first test image through a model. -> steps, from the file to the reconstruction"""
    batch = data.test.batch(slice(0, 1))
    split_shape, image_shape = tuple(data.test.images.shape), tuple(batch.images.shape)
    loader = entry(data.name).load
    steps = [
        Step(
            _source_line(loader),
            f"load {data.name!r}, the whole test split",
            split_shape,
            "[N,C,H,W]",
        ),
        Step(
            _source_line(type(data.test)),
            "one image of it, scaled to [0,1]",
            image_shape,
            "[B,C,H,W]",
        ),
    ]
    model.eval()
    with _Recorder(model, steps):
        output = model.encode(batch.images)
        for field in fields(output):
            tensor = getattr(output, field.name)
            if field.name in ("logits", "scores") and tensor is not None:
                what, letters = (field.metadata[key] for key in ("what", "letters"))
                where = _source_line(type(model).encode)
                steps.append(Step(where, f"{field.name}: {what}", tuple(tensor.shape), letters))
        if "decode" in model.provides and output.capsules is not None:
            model.decode(output.capsules)
        inpaint = getattr(model, "inpaint", None)
        if inpaint is not None and "inpaint" in model.provides:
            inpaint(output.layers[-1])
    return steps
