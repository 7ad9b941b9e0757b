"""Whole training steps: forward, loss, backward and Adam, in one CUDA graph.

    python benchmarks/models.py [MODEL …] [--dtype tf32|bf16] [--record]

capsnet-28 and -40: CapsNet with its decoder, batch 128. capsnet-224: 100 classes, batch 32, one
transform for all children. deep: three conv-capsule layers at 64x64. sr: SR-CapsNet with two layers
on CIFAR-10's shape. em: EM capsules on smallNORB's shape, 2 iterations. On a CPU: capsnet-28,
batch 32, and the share of its routing.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from clock import arguments, clear, recorder, timed
from torch import Tensor, nn

from torchcaps.layers import ConvCaps, DenseCaps, PrimaryCaps
from torchcaps.losses import margin_loss
from torchcaps.models import create_model

PUBLIC = {"capsnet-28": 12.3, "sr": 73.0, "em": 761.0}
"""Milliseconds of the best public code on an H200 (tf32, eager); see docs/gpu.md."""


class Stack(nn.Module):
    """A stem, primary capsules with activations, conv-capsule layers and class capsules."""

    def __init__(
        self, stem: nn.Module, channels: int, layers: Sequence[nn.Module], last: nn.Module
    ):
        super().__init__()
        self.stem = stem
        self.primary = PrimaryCaps(channels, 32, 16, 3, 1, squash=False)
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


def _em() -> nn.Module:
    stem = nn.Sequential(nn.Conv2d(1, 32, 5, 2, 0), nn.ReLU())
    options = {"routing": "em", "num_iters": 2, "matrix": True}
    layers = [ConvCaps(32, 16, 32, 16, 3, 2, **options), ConvCaps(32, 16, 32, 16, 3, 1, **options)]
    last = DenseCaps(4 * 4 * 32, 16, 5, 16, shared=32, coordinates=True, **options)
    return Stack(stem, 32, layers, last)


class Deep(nn.Module):
    """Three conv-capsule layers with dynamic routing, as DeepCaps stacks them, on 64x64 images."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 64, 3, 2, 1), nn.ReLU())
        self.primary = PrimaryCaps(64, 32, 8, 3, 2)
        self.layers = nn.ModuleList(ConvCaps(32, 8, 32, 8, 3, 1, 1) for _ in range(3))
        self.last = DenseCaps(15 * 15 * 32, 8, 10, 16, shared=32)

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
    "em": (_em, (128, 1, 32, 32), 5),
}


def loss_of(found: Any, images: Tensor, labels: Tensor) -> Tensor:
    if isinstance(found, Tensor):
        return nn.functional.nll_loss((found.float() + 1e-6).log(), labels)
    loss = margin_loss(found.lengths.float(), labels).mean()
    if found.reconstruction is not None:
        loss = (
            loss
            + 0.0005 * (found.reconstruction.float() - images).square().flatten(1).sum(1).mean()
        )
    return loss


def gpu(name: str, dtype: str) -> dict[str, Any]:
    make, shape, classes = MODELS[name]
    torch.manual_seed(0)
    images, labels = (
        torch.rand(shape, device="cuda"),
        torch.randint(classes, shape[:1], device="cuda"),
    )
    model = make().cuda().to(memory_format=torch.channels_last)  # pyright: ignore
    capsnet = name.startswith("capsnet")
    compiled = torch.compile(model)
    optimiser = torch.optim.Adam(model.parameters(), fused=True, capturable=True)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == "bf16"):
            found = compiled(images, labels) if capsnet else compiled(images)
        loss_of(found, images, labels).backward()
        optimiser.step()

    ms, peak = timed(step)
    row = {"op": f"training step, {name}", "shape": "x".join(map(str, shape)), "dtype": dtype,
           "impl": "fused, compiled, CUDA graph", "ms": round(ms, 4),
           "peak_mb": round(peak, 1)}  # fmt: skip
    if name in PUBLIC:
        row["ratio_public"] = round(PUBLIC[name] / row["ms"], 1)
    return row


def profile(name: str, dtype: str) -> None:
    """Where the rest of the time is: kernels of three steps, by their share."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    make, shape, classes = MODELS[name]
    images, labels = (
        torch.rand(shape, device="cuda"),
        torch.randint(classes, shape[:1], device="cuda"),
    )
    model = make().cuda().to(memory_format=torch.channels_last)  # pyright: ignore
    compiled = torch.compile(model)
    optimiser = torch.optim.Adam(model.parameters(), fused=True)
    with torch.autocast("cuda", torch.bfloat16, enabled=dtype == "bf16"):  # compile first
        output = compiled(images, labels) if name.startswith("capsnet") else compiled(images)
    loss_of(output, images, labels).backward()
    with profiler(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(3):
            with torch.autocast("cuda", torch.bfloat16, enabled=dtype == "bf16"):
                output = (
                    compiled(images, labels) if name.startswith("capsnet") else compiled(images)
                )
            loss_of(output, images, labels).backward()
            optimiser.step()
            optimiser.zero_grad()
    print(found.key_averages().table(sort_by="self_device_time_total", row_limit=14,
                                     max_name_column_width=60))  # fmt: skip


def cpu() -> list[dict[str, Any]]:
    """Two cores, batch 32: the whole step, and the routing's share of it."""
    torch.set_num_threads(2)
    images, labels = torch.rand(32, 1, 28, 28), torch.randint(10, (32,))
    torch.manual_seed(0)
    model = create_model("capsnet")
    optimiser = torch.optim.Adam(model.parameters())
    poses = torch.randn(32, 1152, 8, requires_grad=True)

    def whole() -> None:
        optimiser.zero_grad()
        loss_of(model(images, labels), images, labels).backward()
        optimiser.step()

    def routing() -> None:
        model.classes(poses).poses.sum().backward()  # pyright: ignore

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
