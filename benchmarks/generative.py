"""A training step of generative capsules on 40x40: encoder, bound, backward, Adam.

    python benchmarks/generative.py [--batch 128] [--record]

bf16 in the encoder, compiled, one CUDA graph: the paper's network, and the VAE beside it; the same
in eager PyTorch. On a CPU: batch 2, to see it run.
"""

from collections.abc import Callable
from typing import Any

import torch
from clock import arguments, clear, recorder, timed

from torchcaps.data import Batch
from torchcaps.models import create_model
from torchcaps.train.setup import channels_last
from torchcaps.train.tasks import Elbo, make_task

PUBLIC = 66.6
"""Milliseconds of a step of the fastest public port of the stacked capsule autoencoder, 40x40."""
JOBS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "generative": ("generative", {}, True),
    "generative, full posterior": ("generative", {"posterior": "full"}, True),
    "generative-one": ("generative-one", {}, True),
    "vae": ("vae", {}, True),
    "generative, eager": ("generative", {}, False),
}


def stepper(
    name: str, fields: dict[str, Any], fast: bool, batch: int, device: str
) -> Callable[[], None]:
    torch.manual_seed(0)
    task: Any = make_task(create_model(name, image_size=40, **fields), Elbo())
    channels_last(task)
    task.to(device).train()
    labels = torch.zeros(batch, dtype=torch.long, device=device)
    data = Batch(torch.rand(batch, 1, 40, 40, device=device), labels)
    gpu = device == "cuda"
    made: Any = torch.compile(task) if gpu and fast else task
    learned = [p for p in task.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(learned, 1e-3, fused=gpu, capturable=gpu)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=gpu and fast):
            loss = made(data)["loss"]
        loss.backward()
        optimiser.step()

    return step


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch = options.batch if device == "cuda" else 2
    done = recorder(options, device)
    for name, (model, fields, fast) in JOBS.items():
        clear()
        ms, peak = timed(stepper(model, fields, fast, batch, device))
        row = {"op": f"training step, {name}", "shape": f"{batch}x1x40x40",
               "impl": "ours" if fast else "eager", "dtype": "bf16" if fast else "tf32",
               "ms": round(ms, 3), "peak_mb": round(peak, 1)}  # fmt: skip
        if fast and device == "cuda" and model == "generative":
            row["ratio_public"] = round(PUBLIC / ms, 1)
        done(row)


if __name__ == "__main__":
    main()
