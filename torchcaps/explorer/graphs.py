"""Questions as ONNX graphs on one file of weights, for a page without a server.

Weights are kept in half precision and made whole again by the graph. Every graph is compared with
PyTorch on the same rounded weights before it is handed out.
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
from torchcaps.models import CapsuleModel

CLOSE = 1e-4
"""The largest difference to PyTorch that a graph may have."""
LARGE = 256
"""Entries of a constant that is kept in the file of weights."""
STEPPED = (Start(), Step())
"""What a page asks in the place of `steps`, which no single graph can answer."""
TRIED = (1, 3, 5)


class Asked(nn.Module):
    """A question as a module, with tensors in an order."""

    def __init__(self, model: CapsuleModel, question: Question):
        super().__init__()
        self.model, self.question = model, question
        self.shapes = question.takes(model)
        self.inputs = list(self.shapes) + (["rows"] if isinstance(question, Hide) else [])
        self.outputs: list[str] = []

    def answer(self, given: Tensors) -> Tensors:
        if isinstance(self.question, Hide):
            hidden = given["hidden"] > 0.5
            return self.question.drawn(self.model, given["image"], hidden, given["rows"])
        return self.question.answer(self.model, given)

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        found = self.answer(dict(zip(self.inputs, given, strict=True)))
        self.outputs = list(found)
        return tuple(found.values())

    def example(self, count: int) -> tuple[Tensor, ...]:
        """Tensors to try it with; count: of whatever may be of any number."""
        sizes = {n: [count if k is None else k for k in s] for n, s in self.shapes.items()}
        made = {n: torch.rand(size) for n, size in sizes.items()}
        if "hidden" in made:
            order = torch.randperm(len(made["hidden"]))
            made["hidden"] = torch.zeros(len(order)).scatter(0, order[2 * count :], 1.0)
            made["rows"] = order[: 2 * count].sort().values[None]
        return tuple(made[name] for name in self.inputs)

    def sizes(self) -> tuple[Any, ...]:
        """Which sizes are free."""
        shapes = {**self.shapes, "rows": (1, None)}
        free = torch.export.Dim("count", min=1, max=256)
        dims = ({k: free for k, n in enumerate(shapes[name]) if n is None} for name in self.inputs)
        return tuple(found or None for found in dims)


class Weights:
    """Constants of several graphs in one file, each once."""

    def __init__(self):
        self.data = bytearray()
        self.places: dict[str, int] = {}

    def put(self, content: bytes) -> int:
        name = hashlib.sha256(content).hexdigest()
        if name not in self.places:
            self.data += bytes(-len(self.data) % 64)
            self.places[name] = len(self.data)
            self.data += content
        return self.places[name]


def halved(model: CapsuleModel) -> CapsuleModel:
    """The model with its weights rounded to half precision, computing as before."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.half().float()
    return model


def write_graphs(model: CapsuleModel, folder: Path) -> dict[str, dict[str, list[str]]]:
    """A file a question and their weights. -> by question the names of inputs and outputs"""
    onnx = require("onnx", "export")
    require("onnxscript", "export")
    require("onnxruntime", "export")
    folder.mkdir(parents=True, exist_ok=True)
    model = halved(model.cpu().eval().requires_grad_(False))
    weights, made, asked = Weights(), {}, {}
    wanted = [QUESTIONS[name] for name in about(model)["questions"]]
    wanted = [q for q in wanted if not isinstance(q, Steps)]
    wanted += [q for q in STEPPED if not q.lacks(model)]
    for one in wanted:
        name = one.name
        asked[name] = question = Asked(model, one)
        graph = _exported(question)
        _take_weights(onnx, graph, weights)
        onnx.save(graph, folder / f"{name}.onnx")
        made[name] = {"inputs": question.inputs, "outputs": question.outputs}
    (folder / "weights.bin").write_bytes(weights.data)
    for name, question in asked.items():
        _compare(folder / f"{name}.onnx", question)
    return made


@torch.no_grad()
def _exported(question: Asked) -> Any:
    torch.manual_seed(0)
    example = question.example(3)
    question(*example)
    module, sizes = question, (question.sizes(),)
    if isinstance(question.question, Step):  # a slope has to be a graph before it can be exported
        module, sizes = make_fx(question)(*example), None
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():  # of torch, about torch's own code
        warnings.simplefilter("ignore")
        program = torch.export.export(module, example, dynamic_shapes=sizes)
        made = torch.onnx.export(
            program, dynamo=True, opset_version=18, verbose=False,
            input_names=question.inputs, output_names=question.outputs,
        )  # fmt: skip
    assert made is not None
    return made.model_proto


def _take_weights(onnx: Any, graph: Any, weights: Weights) -> None:
    """Large float constants that half precision holds, out of a graph into the file."""
    casts = []
    for constant in graph.graph.initializer:
        values = onnx.numpy_helper.to_array(constant)
        if values.dtype != np.float32 or values.size < LARGE:
            continue
        with np.errstate(over="ignore"):  # what is too large is not round, and stays where it is
            half = values.astype(np.float16)
        if not np.array_equal(half.astype(np.float32), values):
            continue  # computed from weights, and no longer round
        name, content = constant.name, half.tobytes()
        where = {"location": "weights.bin", "offset": weights.put(content), "length": len(content)}
        constant.Clear()
        constant.name, constant.data_type = f"{name}.half", onnx.TensorProto.FLOAT16
        constant.dims.extend(values.shape)
        constant.data_location = onnx.TensorProto.EXTERNAL
        for key, value in where.items():
            entry = constant.external_data.add()
            entry.key, entry.value = key, str(value)
        casts.append(onnx.helper.make_node("Cast", [f"{name}.half"], [name], to=1))
    nodes = [*casts, *graph.graph.node]
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)


@torch.no_grad()
def _compare(file: Path, question: Asked) -> None:
    """Answers of a graph beside PyTorch's; edges by their weights, since equals may swap."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for count in TRIED:
        example = question.example(count)
        given = {n: t.numpy() for n, t in zip(question.inputs, example, strict=True)}
        found = session.run(None, given)
        for name, one, other in zip(question.outputs, found, question(*example), strict=True):
            there, wanted = torch.from_numpy(one).float(), other.float()
            if name.endswith(".edges"):
                there, wanted = there[:, 2], wanted[:, 2]
            worst = float((there - wanted).abs().max())
            if not worst < CLOSE * max(1.0, float(wanted.abs().max())):
                raise TorchcapsError(
                    f"{file.name} differs from the model by {worst:.1e} in {name!r}."
                )
