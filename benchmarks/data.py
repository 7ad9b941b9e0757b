"""How many images a second the input pipeline alone delivers.

    python benchmarks/data.py [--device cuda] [--record]
    python benchmarks/data.py --storage        images on disk, see benchmarks/storage.py

On the CPU, ours (two threads) stands beside a per-image pipeline with two worker processes: that of
torchvision where it can be imported, else the same steps written with Pillow. Both are measured in
one run, after a check that both move digits in the same way.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import storage
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from torchcaps.data import Augment, Dataset, Loader, Split, load
from torchcaps.functional import translate
from torchcaps.training.provenance import environment

PIXELS = 2


def digits(count: int = 60_000) -> Dataset:
    """The embedded digits over and over, as many as MNIST has."""
    data = load("digits")
    rows = torch.arange(count) % len(data.train)
    return Dataset("digits", data.train[rows], data.val, data.test, data.classes)


def colors(count: int = 50_000) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    split = Split(images, torch.arange(count) % 10)
    return Dataset("noise", split, split[:1000], split[:1000], tuple("0123456789"))


def ours(
    data: Dataset, augment: tuple[str, ...], batch_size: int, device: str, seconds: float
) -> float:
    """Images a second of the loader and nothing else."""
    loader = Loader(data.to(device), batch_size, augment=Augment(augment) if augment else None)

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    for step in range(20):
        loader.batch(step)
    wait()
    step, began = 20, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(20):
            loader.batch(step)
            step += 1
        wait()
    return (step - 20) * batch_size / (time.perf_counter() - began)


class PerImage(TorchDataset[tuple[Tensor, int]]):
    """A picture at a time: to Pillow, a random shift, back to a tensor."""

    def __init__(self, split: Split):
        self.pixels, self.labels = split.images[:, 0].numpy(), split.labels.tolist()
        self.transform = None
        try:
            from torchvision.transforms import Compose, RandomAffine, ToTensor  # pyright: ignore

            share = PIXELS / 28
            self.transform = Compose([RandomAffine(0, (share, share)), ToTensor()])
        except (ImportError, RuntimeError):
            pass

    @property
    def name(self) -> str:
        return "torchvision, 2 workers" if self.transform else "Pillow, 2 workers"

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = Image.fromarray(self.pixels[index])
        if self.transform:
            return self.transform(picture), self.labels[index]
        dx, dy = (torch.rand(2) * (2 * PIXELS + 1)).long().tolist()
        return to_tensor(shifted(picture, dx - PIXELS, dy - PIXELS)), self.labels[index]


def shifted(picture: Image.Image, dx: int, dy: int) -> Image.Image:
    return picture.transform(picture.size, Image.Transform.AFFINE, (1, 0, -dx, 0, 1, -dy))


def to_tensor(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.asarray(picture, np.float32) / 255)[None]


def per_image(data: Dataset, batch_size: int, seconds: float) -> tuple[str, float]:
    dataset = PerImage(data.train)
    loader = DataLoader(dataset, batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    next(iter(loader))
    count, began = 0, time.perf_counter()
    for images, _ in loader:
        count += len(images)
        if time.perf_counter() - began > seconds:
            break
    return dataset.name, count / (time.perf_counter() - began)


def check(data: Dataset) -> None:
    """No speed is printed unless both pipelines move a digit to the same place."""
    images = data.train.images[:25].float() / 255
    shift = torch.cartesian_prod(torch.arange(-2, 3), torch.arange(-2, 3))
    moved = translate(images, shift)
    for i, (dx, dy) in enumerate(shift.tolist()):
        picture = Image.fromarray(data.train.images[i, 0].numpy())
        torch.testing.assert_close(moved[i], to_tensor(shifted(picture, dx, dy)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--storage", action="store_true", help="measure images on disk instead")
    parser.add_argument("--workers", type=int, default=2, help="threads or processes of --storage")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--results", type=Path, default=Path("results/benchmarks.jsonl"))
    options = parser.parse_args()
    rows = []

    def row(op: str, shape: str, impl: str, device: str, speed: float, **more: float | str) -> None:
        rows.append({"op": op, "shape": shape, "impl": impl, "images_per_s": round(speed), **more})
        rows[-1] |= environment(torch.device(device))
        print(f"{op:34} {shape:20} {impl:24} {speed:14,.0f} images/s", *more.values(), flush=True)

    if options.storage:
        storage.measure(row, options.device, options.workers, options.seconds)
        return write(rows, options)
    small, color = digits(), colors()
    check(small)
    torch.set_num_threads(2)
    shift = f"translate:{PIXELS}"
    if options.device == "cuda":
        for size in (128, 1024):
            speed = ours(small, (), size, "cuda", options.seconds)
            row("input", f"{size}x1x28x28", "ours", "cuda", speed)
            speed = ours(small, (shift,), size, "cuda", options.seconds)
            row(f"input {shift}", f"{size}x1x28x28", "ours", "cuda", speed)
            speed = ours(color, ("crop:4", "flip"), size, "cuda", options.seconds)
            row("input crop:4 flip", f"{size}x3x32x32", "ours", "cuda", speed)
            chain = ("crop:4", "flip", "color-jitter:0.2,contrast=0.2", "erase")
            speed = ours(color, chain, size, "cuda", options.seconds)
            row("input crop flip jitter erase", f"{size}x3x32x32", "ours", "cuda", speed)
    name, slow = per_image(small, 128, options.seconds)
    row(f"input {shift}", "128x1x28x28", name, "cpu", slow)
    speed = ours(small, (shift,), 128, "cpu", options.seconds)
    row(f"input {shift}", "128x1x28x28", "ours", "cpu", speed, ratio=round(speed / slow, 1))
    speed = ours(color, ("crop:4", "flip"), 128, "cpu", options.seconds)
    row("input crop:4 flip", "128x3x32x32", "ours", "cpu", speed)
    write(rows, options)


def write(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    if options.record:
        options.results.parent.mkdir(exist_ok=True)
        with options.results.open("a") as file:
            file.writelines(json.dumps(r) + "\n" for r in rows)


if __name__ == "__main__":
    main()
