"""Questions as ONNX graphs that share one file of weights, for a page without a server.

Weights are stored in half precision; the graph casts them to single precision. Every graph is
compared with PyTorch on the same rounded weights before `write_graphs` returns.
"""

import hashlib
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from torchcaps.errors import TorchcapsError, require
from torchcaps.explorer.questions import QUESTIONS, Hide, Question, Steps, Tensors, about
from torchcaps.explorer.stepping import Start, Step
from torchcaps.models import Model

CLOSE = 1e-4
"""Largest allowed difference between a graph and PyTorch."""
LARGE = 256
"""Constants of at least so many entries go into the file of weights."""
STEPPED = (Start(), Step())
"""Questions instead of `steps`, which is not a single graph."""
COUNTS = (1, 3, 5)
"""Sizes of free dimensions at which graphs are compared with PyTorch."""


class QuestionModule(nn.Module):
    """A question as a module with ordered tensors as inputs and outputs."""

    def __init__(self, model: Model, question: Question):
        super().__init__()
        self.model, self.question = model, question
        self.shapes = question.input_shapes(model)
        self.inputs = list(self.shapes) + (["rows"] if isinstance(question, Hide) else [])
        self.outputs: list[str] = []

    def answer(self, inputs: Tensors) -> Tensors:
        if isinstance(self.question, Hide):
            hidden = inputs["hidden"] > 0.5
            return self.question.decode(self.model, inputs["image"], hidden, inputs["rows"])
        return self.question.answer(self.model, inputs)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = self.answer(dict(zip(self.inputs, inputs, strict=True)))
        self.outputs = list(outputs)
        return tuple(outputs.values())

    def example(self, count: int) -> tuple[Tensor, ...]:
        """Random inputs; count: the size of free dimensions."""
        sizes = {n: [count if k is None else k for k in s] for n, s in self.shapes.items()}
        tensors = {n: torch.rand(size) for n, size in sizes.items()}
        if "hidden" in tensors:
            order = torch.randperm(len(tensors["hidden"]))
            tensors["hidden"] = torch.zeros(len(order)).scatter(0, order[2 * count :], 1.0)
            tensors["rows"] = order[: 2 * count].sort().values[None]
        return tuple(tensors[name] for name in self.inputs)

    def dynamic_shapes(self) -> tuple[Any, ...]:
        """Free dimensions of each input; None: all sizes are fixed."""
        shapes = {**self.shapes, "rows": (1, None)}
        free = torch.export.Dim("count", min=1, max=256)
        dims = ({k: free for k, n in enumerate(shapes[name]) if n is None} for name in self.inputs)
        return tuple(d or None for d in dims)


class Weights:
    """Constants of several graphs in one file, without duplicates."""

    def __init__(self):
        self.data = bytearray()
        self.offsets: dict[str, int] = {}

    def put(self, content: bytes) -> int:
        """Add a constant. -> its offset"""
        name = hashlib.sha256(content).hexdigest()
        if name not in self.offsets:
            self.data += bytes(-len(self.data) % 64)
            self.offsets[name] = len(self.data)
            self.data += content
        return self.offsets[name]


def halved(model: Model) -> Model:
    """Round a model's weights to half precision in place; it computes in single precision."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.half().float()
    return model


def write_graphs(model: Model, folder: Path) -> dict[str, dict[str, list[str]]]:
    """Write one graph per question and their weights. -> names of inputs and outputs by question"""
    onnx = require("onnx", "export")
    require("onnxscript", "export")
    require("onnxruntime", "export")
    folder.mkdir(parents=True, exist_ok=True)
    model = halved(model.cpu().eval().requires_grad_(False))
    questions = [QUESTIONS[name] for name in about(model)["questions"]]
    questions = [q for q in questions if not isinstance(q, Steps)]
    questions += [q for q in STEPPED if not q.lacks(model)]
    modules = {q.name: QuestionModule(model, q) for q in questions}
    weights = Weights()
    for name, module in modules.items():
        graph = _export(module)
        _move_weights(onnx, graph, weights)
        onnx.save(graph, folder / f"{name}.onnx")
    (folder / "weights.bin").write_bytes(weights.data)
    for name, module in modules.items():
        _compare(folder / f"{name}.onnx", module)
    return {name: {"inputs": m.inputs, "outputs": m.outputs} for name, m in modules.items()}


@torch.no_grad()
def _export(question: QuestionModule) -> Any:
    torch.manual_seed(0)
    example = question.example(3)
    question(*example)
    module, shapes = question, (question.dynamic_shapes(),)
    if isinstance(question.question, Step):  # torch.export needs the gradient as a graph
        module, shapes = make_fx(question)(*example), None
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():  # torch warns about its own code
        warnings.simplefilter("ignore")
        program = torch.export.export(module, example, dynamic_shapes=shapes)
        exported = torch.onnx.export(
            program, dynamo=True, opset_version=18, verbose=False,
            input_names=question.inputs, output_names=question.outputs,
        )  # fmt: skip
    assert exported is not None
    return exported.model_proto


def _move_weights(onnx: Any, graph: Any, weights: Weights) -> None:
    """Move large float constants that half precision holds exactly from a graph to the file."""
    casts = []
    for constant in graph.graph.initializer:
        values = onnx.numpy_helper.to_array(constant)
        if values.dtype != np.float32 or values.size < LARGE:
            continue
        with np.errstate(over="ignore"):  # overflow: not exact, so it stays in the graph
            half = values.astype(np.float16)
        if not np.array_equal(half.astype(np.float32), values):
            continue  # computed from weights, so no longer exact in half precision
        name, content = constant.name, half.tobytes()
        external = {
            "location": "weights.bin", "offset": weights.put(content), "length": len(content),
        }  # fmt: skip
        constant.Clear()
        constant.name, constant.data_type = f"{name}.half", onnx.TensorProto.FLOAT16
        constant.dims.extend(values.shape)
        constant.data_location = onnx.TensorProto.EXTERNAL
        for key, value in external.items():
            entry = constant.external_data.add()
            entry.key, entry.value = key, str(value)
        casts.append(onnx.helper.make_node("Cast", [f"{name}.half"], [name], to=1))
    nodes = [*casts, *graph.graph.node]
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)


@torch.no_grad()
def _compare(file: Path, question: QuestionModule) -> None:
    """Compare a graph with PyTorch; edges only by their weights, since ties may swap."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for count in COUNTS:
        example = question.example(count)
        inputs = {n: t.numpy() for n, t in zip(question.inputs, example, strict=True)}
        outputs = session.run(None, inputs)
        for name, onnx, torch_ in zip(question.outputs, outputs, question(*example), strict=True):
            actual, expected = torch.from_numpy(onnx).float(), torch_.float()
            if name.endswith(".edges"):
                actual, expected = actual[:, 2], expected[:, 2]
            worst = float((actual - expected).abs().max())
            if not worst < CLOSE * max(1.0, float(expected.abs().max())):
                raise TorchcapsError(
                    f"{file.name} differs from the model by {worst:.1e} in {name!r}."
                )
