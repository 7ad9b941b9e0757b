"""A training step of sparse capsules on 40x40: forward, loss, backward, Adam, counts.

    python benchmarks/sparse.py [MODEL …] [--batch 128] [--record]

bf16, channels last, compiled, one CUDA graph: the paper's network; the same without support, ranks
and masks (what they cost); the network of `sparse/best`; a stack of two layers. And the paper's in
eager PyTorch with written votes, in tf32. `steps_30000_s`: seconds of the paper's 30,000 steps. On
a CPU: batch 2, to see it run.
"""

from typing import Any

import torch
from clock import clear, timed, training_step, unsupervised
from torch import Tensor

from torchcaps.layers import DenseCaps
from torchcaps.models import create_model
from torchcaps.models.sparse.mask import Ranking, SparseMask
from torchcaps.models.sparse.task import SparseTask
from torchcaps.papers.sparse.best import FRAMED
from torchcaps.training.evaluate import on_device
from torchcaps.training.tasks import Sparse, make_task


class NoMask(SparseMask):
    """A stand-in that reads no coupling, so that torch.compile leaves its computation out."""

    def forward(self, coupling: Tensor, grid: tuple[int, ...]) -> Ranking:
        ones = torch.ones(len(coupling), self.num_caps, device=coupling.device)
        return Ranking(ones, ones, ones)


def make(device: str, impl: str, fields: dict[str, Any], masks: bool = True) -> SparseTask:
    torch.manual_seed(0)
    model: Any = create_model("sparse", image_size=40, **fields)
    for layer in model.modules():
        if isinstance(layer, DenseCaps) and impl != "ours":
            layer.impl = "reference"
    if not masks:
        for number, mask in enumerate(model.masks):
            model.masks[number] = NoMask(mask.num_caps)
    task: Any = make_task(model, Sparse())
    return on_device(task, torch.device(device))


JOBS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "sparse": ("ours", {}, True),
    "sparse, no support, ranks and masks": ("ours", {}, False),
    "sparse/best": ("ours", FRAMED, True),
    "two sparse layers": ("ours", {"num_caps": (32, 16)}, True),
    "sparse, eager": ("eager, votes written", {}, True),
}


def main() -> None:
    device, batch, done, chosen = unsupervised(__doc__, list(JOBS))
    times: dict[str, float] = {}
    for name in chosen:
        impl, fields, masks = JOBS[name]
        clear()
        task = make(device, impl, fields, masks).train()
        bf16 = device == "cuda" and impl == "ours"
        step = training_step(task, batch, device, bf16)
        times[name], peak = timed(step)
        row = {"op": f"training step, {name}", "shape": f"{batch}x1x40x40", "impl": impl,
               "dtype": "bf16" if bf16 else "tf32", "ms": round(times[name], 3),
               "steps_30000_s": round(30 * times[name], 1), "peak_mb": round(peak, 1)}  # fmt: skip
        if not masks and "sparse" in times:
            row["share_of_support_and_masks"] = round(1 - times[name] / times["sparse"], 4)
        if impl != "ours" and "sparse" in times:
            row["ratio"] = round(times[name] / times["sparse"], 2)
        done(row)


if __name__ == "__main__":
    main()
