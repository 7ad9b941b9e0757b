"""Whole training steps: a task's forward, backward and Adam, in one CUDA graph.

    python benchmarks/models.py [MODEL …] [--dtype tf32|bf16] [--record]

capsnet-28 and -40: CapsNet with its decoder, batch 128. capsnet-224: 100 classes, batch 32, one
transform for all children. deep: three conv-capsule layers at 64x64. sr: SR-CapsNet with two layers
on CIFAR-10's shape. em: EM capsules on smallNORB's shape, 2 iterations, each window by itself;
em-across: all parents that see a child compete. On a CPU: capsnet-28, batch 32, and the share of
its routing.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from clock import arguments, clear, recorder, timed
from torch import Tensor, nn

from torchcaps.data import Batch
from torchcaps.layers import EM, ConvCaps, DenseCaps, PrimaryCaps
from torchcaps.models import create_model
from torchcaps.routing import Compete
from torchcaps.training.tasks import Classify, make_task

PUBLIC = {"capsnet-28": 12.3, "sr": 73.0, "em": 761.0}
"""Milliseconds of the best public code on an H200 (tf32, eager); see docs/background/kernels.md."""


class Stack(nn.Module):
    """A stem, primary capsules with activations, conv-capsule layers and class capsules."""

    def __init__(
        self, stem: nn.Module, channels: int, layers: Sequence[nn.Module], last: nn.Module
    ):
        super().__init__()
        self.stem = stem
        self.primary = PrimaryCaps(
            in_channels=channels, num_types=32, out_dim=16, kernel_size=3, stride=1, squash=False
        )
        self.primary.conv.padding = (1, 1)
        self.active = nn.Conv2d(channels, 32, 3, padding=1)
        self.layers, self.last = nn.ModuleList(layers), last

    def forward(self, images: Tensor) -> Tensor:
        features = self.stem(images)
        poses, active = self.primary(features), self.active(features).sigmoid().permute(0, 2, 3, 1)
        for layer in self.layers:
            poses, active, _ = layer(poses, active)
        return self.last(poses, active).activations


def _sr() -> nn.Module:
    return create_model("sr-capsnet")


def _em(compete: Compete) -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(1, 32, 5, 2, 0), nn.ReLU())
    options: dict[str, Any] = {"routing": EM(num_iters=2, compete=compete), "matrix": True}
    layers = [
        ConvCaps(
            in_caps=32, in_dim=16, out_caps=32, out_dim=16, kernel_size=3, stride=2, **options
        ),
        ConvCaps(
            in_caps=32, in_dim=16, out_caps=32, out_dim=16, kernel_size=3, stride=1, **options
        ),
    ]
    last = DenseCaps(
        in_caps=4 * 4 * 32,
        in_dim=16,
        out_caps=5,
        out_dim=16,
        shared=32,
        coordinates=True,
        **options,
    )
    return Stack(stem, 32, layers, last)


class Deep(nn.Module):
    """Three conv-capsule layers with dynamic routing, as DeepCaps stacks them, on 64x64 images."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 2, 1), nn.ReLU())
        self.primary = PrimaryCaps(in_channels=64, num_types=32, out_dim=8, kernel_size=3, stride=2)
        self.layers = nn.ModuleList(
            ConvCaps(
                in_caps=32, in_dim=8, out_caps=32, out_dim=8, kernel_size=3, stride=1, padding=1
            )
            for _ in range(3)
        )
        self.last = DenseCaps(in_caps=15 * 15 * 32, in_dim=8, out_caps=10, out_dim=16, shared=32)

    def forward(self, images: Tensor) -> Tensor:
        poses = self.primary(self.stem(images))
        for layer in self.layers:
            poses = layer(poses).poses
        return self.last(poses).poses.norm(dim=-1)


def _capsnet(size: int, channels: int, **options: Any) -> nn.Module:
    return create_model("capsnet", image_size=size, in_channels=channels, **options)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "capsnet-28": (lambda: _capsnet(28, 1), (128, 1, 28, 28), 10),
    "capsnet-40": (lambda: _capsnet(40, 1), (128, 1, 40, 40), 10),
    "capsnet-224": (
        lambda: _capsnet(224, 3, num_classes=100, transform="shared", hidden=(512,)),
        (32, 3, 224, 224),
        100,
    ),
    "deep": (Deep, (128, 3, 64, 64), 10),
    "sr": (_sr, (128, 3, 32, 32), 10),
    "em": (lambda: _em("window"), (128, 1, 32, 32), 5),
    "em-across": (lambda: _em("all"), (128, 1, 32, 32), 5),
}


class Classes(nn.Module):
    """The loss of a stack of layers that gives activations of classes."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        active = self.model(batch.images).float()
        return {"loss": nn.functional.nll_loss((active + 1e-6).log(), batch.labels)}


def task_of(name: str, device: str) -> nn.Module:
    """A model of the registry with its task, as training has it; a stack with a plain loss."""
    torch.manual_seed(0)
    model: Any = MODELS[name][0]().to(device)
    model = model.to(memory_format=torch.channels_last)
    if name == "sr":
        return make_task(model, Classify(loss="cross_entropy"))
    return make_task(model, Classify()) if name.startswith("capsnet") else Classes(model)


def batch_of(name: str, device: str) -> Batch:
    _, shape, classes = MODELS[name]
    labels = torch.randint(classes, shape[:1], device=device)
    return Batch(torch.rand(shape, device=device), labels)


def stepper(name: str, dtype: str) -> Callable[[], None]:
    task, batch = task_of(name, "cuda"), batch_of(name, "cuda")
    compiled = torch.compile(task)
    optimizer = torch.optim.Adam(task.parameters(), fused=True, capturable=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == "bf16"):
            loss = compiled(batch)["loss"]
        loss.backward()
        optimizer.step()

    return step


def gpu(name: str, dtype: str) -> dict[str, Any]:
    ms, peak = timed(stepper(name, dtype))
    row = {"op": f"training step, {name}", "shape": "x".join(map(str, MODELS[name][1])),
           "dtype": dtype, "impl": "fused, compiled, CUDA graph", "ms": round(ms, 4),
           "peak_mb": round(peak, 1)}  # fmt: skip
    if name in PUBLIC:
        row["ratio_public"] = round(PUBLIC[name] / row["ms"], 1)
    return row


def profile(name: str, dtype: str) -> None:
    """Where the rest of the time is: kernels of three steps, by their share."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    step = stepper(name, dtype)
    step()  # compiles
    with profiler(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(3):
            step()
    print(found.key_averages().table(sort_by="self_device_time_total", row_limit=14,
                                     max_name_column_width=60))  # fmt: skip


def cpu() -> list[dict[str, Any]]:
    """Two cores, batch 32: the whole step, and the routing's share of it."""
    torch.set_num_threads(2)
    batch = batch_of("capsnet-28", "cpu")[slice(0, 32)]
    task: Any = task_of("capsnet-28", "cpu")
    optimizer = torch.optim.Adam(task.parameters())
    poses = torch.randn(32, 1152, 8, requires_grad=True)

    def whole() -> None:
        optimizer.zero_grad()
        task(batch)["loss"].backward()
        optimizer.step()

    def routing() -> None:
        task.model.classes(poses).poses.sum().backward()

    rows = []
    for op, function in (("training step", whole), ("routing of a training step", routing)):
        times = []
        for _ in range(8):
            began = time.perf_counter()
            function()
            times.append(time.perf_counter() - began)
        ms = round(1000 * sorted(times[2:])[3], 1)
        rows.append({"op": f"{op}, capsnet-28", "shape": "32x1x28x28", "dtype": "fp32",
                     "impl": "reference", "ms": ms})  # fmt: skip
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--dtype", choices=["tf32", "bf16"], default="bf16")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    done = recorder(options, device.type)
    if device.type == "cpu":
        for row in cpu():
            done(row)
        return
    for name in options.models:
        clear()
        done(gpu(name, options.dtype))
        if options.profile:
            profile(name, options.dtype)


if __name__ == "__main__":
    main()
