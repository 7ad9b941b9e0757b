"""A training step of generative capsules on 40x40: encoder, bound, backward, Adam.

    python benchmarks/generative.py [MODEL …] [--batch 128] [--record]

bf16 in the encoder, compiled, one CUDA graph: the paper's network, that of `generative/best` with
eight frames, the stacked capsule autoencoder and the VAE beside them; the first in eager PyTorch.
On a CPU: batch 2, to see it run.
"""

from typing import Any

import torch
from clock import clear, timed, training_step, unsupervised

from torchcaps.models import create_model
from torchcaps.training.evaluate import on_device
from torchcaps.training.tasks import Elbo, make_task

PUBLIC = 66.6
"""Milliseconds of a step of the fastest public port of the stacked capsule autoencoder, 40x40."""
JOBS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "generative": ("generative", {}, True),
    "generative, full posterior": ("generative", {"posterior": "full"}, True),
    "generative-framed": ("generative-framed", {}, True),
    "scae": ("scae", {}, True),
    "vae": ("vae", {}, True),
    "generative, eager": ("generative", {}, False),
}


def make(name: str, fields: dict[str, Any], device: str) -> Any:
    torch.manual_seed(0)
    task = make_task(create_model(name, image_size=40, **fields), Elbo())
    return on_device(task, torch.device(device)).train()


def main() -> None:
    device, batch, done, chosen = unsupervised(__doc__, list(JOBS))
    for name in chosen:
        model, fields, fast = JOBS[name]
        clear()
        bf16 = fast and device == "cuda"
        ms, peak = timed(training_step(make(model, fields, device), batch, device, bf16))
        row = {"op": f"training step, {name}", "shape": f"{batch}x1x40x40",
               "impl": "ours" if fast else "eager", "dtype": "bf16" if bf16 else "tf32",
               "ms": round(ms, 3), "peak_mb": round(peak, 1)}  # fmt: skip
        if bf16 and model in ("generative", "scae"):
            row["ratio_public"] = round(PUBLIC / ms, 1)
        done(row)


if __name__ == "__main__":
    main()
