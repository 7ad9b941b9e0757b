"""Training steps of the masked capsule autoencoder on each data set's shape.

    python benchmarks/mcae.py [SET …] [--batch 256] [--record]

Forward, loss, backward, SGD; bf16, compiled, one CUDA graph. Pretraining with the global-routing
decoder, and what its votes would take if they were written; finetuning; the backbone's operations
for one image. On a CPU: one small step of each, to see it run.
"""

import argparse
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from torchcaps.experiments import get_recipe
from torchcaps.experiments.mcae.setting import SETTINGS, slug
from torchcaps.models.mcae import MCAE
from torchcaps.models.registry import build
from torchcaps.train.masked import masked_loss
from torchcaps.train.recipe import LossSpec
from torchcaps.train.record import environment


def mflops(model: MCAE) -> float:
    """Of one image through patches, backbone and capsules, in millions."""
    image = torch.rand(1, *model.config.image_shape)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.cpu().eval().encode(image)
    return counter.get_total_flops() / 1e6


def stepper(model: MCAE, batch: int, device: str) -> Callable[[], None]:
    from torchcaps.data import Batch

    shape = model.config.image_shape
    data = Batch(torch.rand(batch, *shape, device=device), torch.zeros(batch, device=device).long())
    made: Any = torch.compile(model) if device == "cuda" else model
    optimiser = torch.optim.SGD(model.parameters(), 0.1, 0.9, fused=device == "cuda")

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            if model.options.stage == "pretrain":
                loss = masked_loss(made, data, LossSpec())["loss"]
            else:
                loss = nn.functional.nll_loss(made(data.images).logits.float(), data.labels)
        loss.backward()
        optimiser.step()

    return step


def timed(step: Callable[[], None], device: str) -> tuple[float, float]:
    """-> milliseconds, peak MB"""
    if device == "cpu":
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
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    captured.replay()
    begin.record()
    for _ in range(10):
        captured.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 10, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sets", nargs="*", default=list(SETTINGS), help=", ".join(SETTINGS))
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--results", type=Path, default=Path("results/benchmarks.jsonl"))
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch = options.batch if device == "cuda" else 2
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    facts = environment(torch.device(device))
    facts["command"] = re.sub(r" --results \S+", "", facts["command"])  # a path of one machine
    for column in options.sets:
        name = slug(column)
        for recipe in (f"mcae/pretrain/{name}", f"mcae/table1/{name}-scratch"):
            torch._dynamo.reset()
            torch.manual_seed(0)
            model = build(get_recipe(recipe).model)
            assert isinstance(model, MCAE)
            c, counted = model.options, mflops(model)
            ms, peak = timed(stepper(model.to(device).train(), batch, device), device)
            row = {"op": f"training step, mcae {c.stage}, {column}", "ms": round(ms, 3),
                   "shape": "x".join(map(str, (batch, *c.image_shape))), "peak_mb": round(peak, 1),
                   "dtype": "bf16" if device == "cuda" else "fp32", "mflops": round(counted, 1),
                   "impl": "ours", "images_per_s": round(1000 * batch / ms)}  # fmt: skip
            if c.stage == "pretrain":
                votes = batch * model.length**2 * c.num_caps * c.decoder_dim
                row["votes_would_take_mb"] = round(2 * votes / 1e6)
            print(row, flush=True)
            if options.record:
                with options.results.open("a") as file:
                    file.write(json.dumps({**row, **facts}) + "\n")


if __name__ == "__main__":
    main()
