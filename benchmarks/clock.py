"""What the benchmarks share: the clock, and the line that they record."""

import argparse
import gc
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchcaps.data import Batch
from torchcaps.papers.records import append
from torchcaps.training.provenance import environment

FITS = 30_000
"""Megabytes of a step up to which it is captured as a CUDA graph, unless told."""


def clear() -> None:
    """Nothing of the row before stays on the device: peaks are those of one model alone."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        # a row has streams of its own, and cuBLAS keeps 32 MiB for each stream that it has seen
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def timed(
    step: Callable[[], Any], graph: bool | None = None, seconds: float = 0.3
) -> tuple[float, float]:
    """Milliseconds, the median of five, and peak MB of a step; on a GPU as a CUDA graph.

    graph: whether it can be one; None: where it fits
    """
    if not torch.cuda.is_available():
        began = time.perf_counter()
        step()
        return 1000 * (time.perf_counter() - began), 0.0
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    gc.collect()  # what earlier rows left in cycles is not this row's memory
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() / 1e6
    again = step
    if graph or (graph is None and peak < FITS):
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            step()
        again = captured.replay
    once = _elapsed(again, 1)
    repeats = max(2, min(70, int(seconds * 1000 / 3 / max(once, 1e-3))))
    times = sorted(_elapsed(again, repeats) for _ in range(5))
    return times[2], peak


def _elapsed(step: Callable[[], Any], repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats


def arguments(doc: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--results", type=Path, default=Path("results/benchmarks.jsonl"))
    return parser


def recorder(
    options: argparse.Namespace, device: str, exact: bool = False
) -> Callable[[dict[str, Any]], None]:
    """A function that prints a row and, with --record, appends it with where it comes from.

    exact: full float32 products, in place of tf32
    """
    torch.set_float32_matmul_precision("highest" if exact else "high")
    torch.backends.cudnn.allow_tf32 = not exact
    torch.backends.cudnn.benchmark = True
    facts = environment(torch.device(device))
    facts["command"] = re.sub(r" --results \S+", "", facts["command"])  # a path of one machine

    def done(row: dict[str, Any]) -> None:
        print(row, flush=True)
        if options.record:
            append(options.results, [{**row, **facts}])

    return done


def unsupervised(
    doc: str | None, models: list[str]
) -> tuple[str, int, Callable[[dict[str, Any]], None], list[str]]:
    """What a benchmark of 40x40 images without labels begins with: device, batch, recorder, and
    which of its models are asked for.
    """
    parser = arguments(doc)
    parser.add_argument("models", nargs="*", default=models, help=", ".join(models))
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch = options.batch if device == "cuda" else 2
    return device, batch, recorder(options, device), options.models


def training_step(task: Any, batch: int, device: str, fast: bool) -> Callable[[], None]:
    """A step of a task on 40x40 images: forward, loss, backward, Adam, what comes after an update.

    fast: on a GPU compiled, in bf16
    """
    labels = torch.zeros(batch, dtype=torch.long, device=device)
    data = Batch(torch.rand(batch, 1, 40, 40, device=device), labels)
    gpu = device == "cuda"
    made: Any = torch.compile(task) if gpu and fast else task
    learned = [p for p in task.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(learned, 1e-3, fused=gpu, capturable=gpu)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=gpu and fast):
            parts = made(data)
        parts["loss"].backward()
        optimizer.step()
        task.after_step(0, parts)

    return step
