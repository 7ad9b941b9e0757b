"""What the benchmarks of whole training steps share: the clock, and the line that they record."""

import argparse
import gc
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchcaps.train.record import environment


def clear() -> None:
    """Nothing of the row before stays on the device: peaks are those of one model alone."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        # a row has streams of its own, and cuBLAS keeps 32 MiB for each stream that it has seen
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def timed(step: Callable[[], None], graph: bool = True, repeats: int = 20) -> tuple[float, float]:
    """Milliseconds and peak MB of a step; on a GPU as a CUDA graph, unless it cannot be one."""
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
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() / 1e6
    again = step
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            step()
        again = captured.replay
        again()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        again()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats, peak


def arguments(doc: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--results", type=Path, default=Path("results/benchmarks.jsonl"))
    return parser


def recorder(options: argparse.Namespace, device: str) -> Callable[[dict[str, Any]], None]:
    """A function that prints a row and, with --record, appends it with where it comes from."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    facts = environment(torch.device(device))
    facts["command"] = re.sub(r" --results \S+", "", facts["command"])  # a path of one machine

    def done(row: dict[str, Any]) -> None:
        print(row, flush=True)
        if options.record:
            options.results.parent.mkdir(parents=True, exist_ok=True)
            with options.results.open("a") as file:
                file.write(json.dumps({**row, **facts}) + "\n")

    return done
