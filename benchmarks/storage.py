"""Images on disk: records and decoded images a second, in random order, beside other loaders.

    python benchmarks/data.py --storage [--workers 2] [--record]
    python benchmarks/data.py --storage --device cuda --workers 16 --record

The same JPEG files are read by a pack, by an image folder (torchvision's ImageFolder if it can be
imported, else the same steps with Pillow) and by Hugging Face datasets, each with as many workers.
Rows compare batches of float images in [0,1]; all three are checked to give the same pixels first.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from torchcaps.data import Dataset, Loader, load
from torchcaps.data.sets.packed import open_records, pack_source

BATCH = 250
Row = Callable[..., None]


def write_photographs(folder: Path, size: int, count: int) -> None:
    for label in range(10):
        (folder / f"class{label}").mkdir(parents=True)
    with ProcessPoolExecutor() as pool:
        list(pool.map(partial(write_photograph, folder, size), range(count), chunksize=50))


def write_photograph(folder: Path, size: int, number: int) -> None:
    """Noise on several scales: at JPEG quality 90 about the bytes of a photograph."""
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (7, 7, 3), dtype=np.uint8)
    fine = rng.integers(0, 256, (size // 4, size // 4, 3), dtype=np.uint8)
    layers = [
        np.asarray(Image.fromarray(part).resize((size, size), Image.Resampling.BICUBIC), float)
        for part in (coarse, fine)
    ]
    pixels = 0.8 * layers[0] + 0.2 * layers[1] + rng.normal(0, 4, (size, size, 3))
    path = folder / f"class{number % 10}" / f"{number:06}.jpg"
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)


class Folder(TorchDataset[tuple[Tensor, int]]):
    """An image folder as torchvision reads it: open, decode with Pillow, to a float tensor."""

    def __init__(self, folder: Path):
        self.paths = sorted(folder.rglob("*.jpg"))
        names = sorted(p.name for p in folder.iterdir())
        self.labels = [names.index(p.parent.name) for p in self.paths]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with self.paths[index].open("rb") as file:
            image = Image.open(file).convert("RGB")
        return to_tensor(image), self.labels[index]


def to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float() / 255


def image_folder(folder: Path) -> tuple[str, Any]:
    try:
        from torchvision.datasets import ImageFolder  # pyright: ignore
        from torchvision.transforms import ToTensor  # pyright: ignore

        return "ImageFolder", ImageFolder(str(folder), ToTensor())
    except (ImportError, RuntimeError):
        return "Pillow as ImageFolder", Folder(folder)


def hugging_face(out: Path) -> Any:
    """The pack's own shards as a Hugging Face dataset."""
    import datasets

    datasets.disable_progress_bars()
    return datasets.concatenate_datasets(
        [datasets.Dataset.from_file(str(path)) for path in sorted(out.glob("*.arrow"))]
    )


def transformed(rows: dict[str, list[Any]]) -> dict[str, Any]:
    return {"image": [to_tensor(image) for image in rows["image"]], "label": rows["label"]}


def per_second(batches: Iterator[int], seconds: float) -> float:
    """Images a second, after the first batch: workers start and files are opened."""
    next(batches)
    count, began = 0, time.perf_counter()
    for size in batches:
        count += size
        if time.perf_counter() - began > seconds:
            break
    return count / (time.perf_counter() - began)


def of_loader(dataset: Any, workers: int) -> Iterator[int]:
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, persistent_workers=True)
    while True:
        for batch in loader:
            yield len(batch["image"] if isinstance(batch, dict) else batch[0])


def of_pack(data: Dataset, device: str = "cpu") -> Iterator[int]:
    loader = Loader(data.to(device), BATCH)
    step = 0
    while True:
        loader.batch(step)
        if device == "cuda":
            torch.cuda.synchronize()
        step += 1
        yield BATCH


def undecoded(read: Callable[[int], Any], count: int, seconds: float) -> float:
    """Records a second of one core: other programs take none of the time."""
    order, done = np.random.default_rng(0).permutation(count).tolist(), 0
    for number in order[:100]:
        read(number)
    began = time.process_time()
    while time.process_time() - began < seconds:
        for number in order:
            read(number)
        done += count
    return done / (time.process_time() - began)


def anonymous_mb() -> float:
    """Memory of this process that is not a mapped file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def memory_of_epochs(data: Dataset, epochs: int = 3) -> list[float]:
    loader, numbers = Loader(data, BATCH, cutmix=0.5), []
    for epoch in range(epochs):
        for step in range(loader.steps_per_epoch):
            loader.batch(epoch * loader.steps_per_epoch + step)
        numbers.append(round(anonymous_mb(), 1))
    return numbers


def consumed(seconds: float) -> float:
    """Images a second that a training step of convnet-modern takes, 224 px, bf16, compiled."""
    from torchcaps import create_model
    from torchcaps.training.tasks import Classify, make_task

    model = create_model("convnet-modern", in_channels=3, image_size=224, num_classes=1000)
    task = make_task(model, Classify(loss="cross_entropy")).cuda().train()
    optimizer = torch.optim.AdamW(task.parameters(), fused=True)
    images = torch.rand(BATCH, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (BATCH,), device="cuda")
    from torchcaps.data import Batch

    compiled = torch.compile(lambda i, y: task(Batch(i, y))["loss"])

    def steps() -> Iterator[int]:
        while True:
            with torch.autocast("cuda", torch.bfloat16):
                loss = compiled(images, labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            yield BATCH

    return per_second(steps(), seconds)


def measure(row: Row, device: str, workers: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as root:
        for size, count in ((64, 8000), (224, 2000)):
            _measure_size(Path(root) / str(size), size, count, row, device, workers, seconds)


def _measure_size(
    root: Path, size: int, count: int, row: Row, device: str, workers: int, seconds: float
) -> None:
    write_photographs(root / "folder", size, count)
    out = root / "pack"
    pack_source(str(root / "folder"), out)
    shape = f"{size} px, {sum(p.stat().st_size for p in out.iterdir()) / count / 1000:.1f} kB"
    many = f"{workers} workers"
    label, folder = image_folder(root / "folder")
    stored = hugging_face(out)
    data = load(f"packed:{out},in_memory=false")
    data.train.images.store.use_threads(workers)  # pyright: ignore[reportAttributeAccessIssue]
    records = open_records(f"packed:{out}")
    expected = folder[7][0]
    assert torch.equal(to_tensor(stored[7]["image"]), expected)
    pixels = data.train.images.store.pixels(np.array([7]))  # pyright: ignore
    assert torch.equal(pixels[0].float() / 255, expected)

    import datasets

    plain = stored.cast_column("image", datasets.Image(decode=False))
    slow = undecoded(plain.__getitem__, len(plain), seconds)
    row("records, not decoded", shape, "datasets, by number", "cpu", slow)
    speed = undecoded(records.read, len(records), seconds)
    row("records, not decoded", shape, "ours", "cpu", speed, ratio=round(speed / slow, 1))

    by_files = per_second(of_loader(folder, workers), seconds)
    row("decoded images", shape, f"{label}, {many}", "cpu", by_files)
    with_transform = stored.with_transform(transformed)
    by_datasets = per_second(of_loader(with_transform, workers), seconds)
    row("decoded images", shape, f"datasets, {many}", "cpu", by_datasets)
    speed = per_second(of_pack(data), seconds)
    ratios = {"ratio": round(speed / by_files, 2), "ratio_datasets": round(speed / by_datasets, 2)}
    row("decoded images", shape, f"ours, {workers} threads", "cpu", speed, **ratios)
    if size < 224:
        return
    numbers = memory_of_epochs(data)
    row("anonymous memory, MB by epoch", shape, "ours", "cpu", 0, mb=" ".join(map(str, numbers)))
    pack_source(f"{root}/folder,size={size},coding=raw", root / "raw")
    raw = load(f"packed:{root}/raw,in_memory=false")
    raw.train.images.store.use_threads(workers)  # pyright: ignore[reportAttributeAccessIssue]
    needed = consumed(seconds) if device == "cuda" else 0.0
    for name, packed in (("JPEG pack", data), ("raw pack", raw)):
        speed = per_second(of_pack(packed, device), seconds)
        more = {"ratio": round(speed / needed, 2)} if needed else {}
        row(
            f"batches on the device, {name}",
            shape,
            f"ours, {workers} threads",
            device,
            speed,
            **more,
        )
    if needed:
        row("training step, convnet-modern", f"{BATCH}x3x224x224", "bf16, compiled", device, needed)
