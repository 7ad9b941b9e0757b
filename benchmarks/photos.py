"""Training steps on photographs: heads on a backbone, everything trained, and the autoencoder.

    python benchmarks/photos.py [ROW …] [--compile] [--batch 128] [--classes 1000] [--record]

Rows: lite0-HEAD and resnet50-HEAD (needs timm), HEAD one of linear, self, uniform, dynamic; and
mcae, pretraining with patches of 16. A row is forward, loss, backward and AdamW in bf16, channels
last, in one CUDA graph; a capsule head's row has its ratio to the linear head's of the same
backbone. --compile: with torch.compile. On a CPU: one small step of each, to see it run.
"""

from collections.abc import Callable
from typing import Any

import torch
from clock import arguments, clear, recorder, timed

from torchcaps.data import Batch
from torchcaps.models import create_model
from torchcaps.training.tasks import Classify, Masked, make_task

BACKBONES = {"lite0": "efficientnet-lite0", "resnet50": "timm:resnet50"}
HEADS = ("linear", "uniform", "self", "dynamic")
ROWS = [*(f"{b}-{h}" for b in BACKBONES for h in HEADS), "mcae"]


def task_of(row: str, side: int, classes: int) -> Any:
    torch.manual_seed(0)
    if row == "mcae":
        fields: dict[str, Any] = {
            "image_size": side,
            "in_channels": 3,
            "patch_size": 16,
            "decoder": "conv",
        }
        return make_task(create_model("mcae-pretrain", **fields), Masked())
    backbone, _, head = row.partition("-")
    name = "linear-head" if head == "linear" else "capsule-head"
    options: dict[str, Any] = {} if head == "linear" else {"routing": head}
    model = create_model(
        name, backbone=BACKBONES[backbone], frozen="none", image_size=side, num_classes=classes,
        **options,
    )  # fmt: skip
    return make_task(model, Classify(loss="cross_entropy"))


def stepper(task: Any, batch: int, classes: int, device: str, compiled: bool) -> Callable[[], None]:
    task = task.to(device, memory_format=torch.channels_last).train()
    images = torch.rand(batch, *task.model.config.image_shape, device=device)
    images = images.to(memory_format=torch.channels_last)
    data = Batch(images, torch.randint(classes, (batch,), device=device))
    made: Any = torch.compile(task) if compiled else task
    gpu = device == "cuda"
    optimizer = torch.optim.AdamW(task.parameters(), 1e-4, fused=gpu, capturable=gpu)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=gpu):
            loss = made(data)["loss"]
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("rows", nargs="*", default=ROWS, help=", ".join(ROWS))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--classes", type=int, default=1000)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    done = recorder(options, device)
    linear: dict[str, float] = {}
    for name in options.rows:
        clear()
        task = task_of(name, options.side, options.classes)
        parameters = task.model.num_parameters
        step = stepper(task, options.batch, options.classes, device, options.compile)
        ms, peak = timed(step)
        row = {
            "op": f"training step, {name}", "ms": round(ms, 3), "peak_mb": round(peak, 1),
            "shape": f"{options.batch}x3x{options.side}x{options.side}, {options.classes} classes",
            "dtype": "bf16" if device == "cuda" else "fp32", "parameters": parameters,
            "impl": "compiled, CUDA graph" if options.compile else "CUDA graph",
        }  # fmt: skip
        backbone, _, head = name.partition("-")
        if head == "linear":
            linear[backbone] = ms
        elif backbone in linear:
            row["ratio_linear"] = round(ms / linear[backbone], 3)
        done(row)


if __name__ == "__main__":
    main()
