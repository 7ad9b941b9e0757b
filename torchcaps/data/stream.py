"""Images that do not fit in memory: read by number and decoded by threads, a few batches ahead."""

import io
import mmap
import os
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Lock, local
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.images import MAX_ASPECT, MAX_PIXELS, Size, cover, read_image
from torchcaps.data.records import Bytes, Records
from torchcaps.data.value_range import Range
from torchcaps.errors import TorchcapsError

MAX_THREADS = 8
"""Decoding threads, if their number is not given."""
VALUES_OF_A_THREAD = 6_000
"""Pixel values of an image for each further thread: those of small images would mostly wait for
Python's lock."""
HUGE = 1 << 25
"""Bytes from which memory is asked for in huge pages: glibc keeps smaller pieces for their next
use, and returns larger ones to the system."""
PENDING = 8
"""Decoded batches that wait for their use; older ones are dropped."""
GROUP = 16
"""Images that a thread decodes one after the other."""
LARGEST_VIEW = 2**32
"""Bytes that may be decoded at once: evaluation takes batches, not whole splits."""
IN_MEMORY = 0.4
"""Share of the memory that images may take before they stay on disk."""
Coding = Literal["encoded", "jpeg", "raw"]
"""encoded: image files of any kind; jpeg: plain JPEG of one size; raw: pixels [C,H,W]."""


def plain_jpeg(data: Bytes) -> bool:
    """True if data is a JPEG without EXIF, which may hold an orientation."""
    if data[:2] != b"\xff\xd8":
        return False
    place = 2
    while place + 4 <= len(data) and data[place] == 0xFF:
        kind = data[place + 1]
        if kind == 0xDA:  # the pixels begin
            return True
        if kind == 0xE1 and data[place + 4 : place + 8] == b"Exif":
            return False
        place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    return False


def jpeg_decoder() -> Any:
    """simplejpeg, or None: Pillow gives the same pixels, more slowly."""
    try:
        return import_module("simplejpeg")
    except ImportError:
        return None


class Decoder:
    """Encoded images to pixels of one size, the same as those of `read_image`.

    Pixels are [H,W,C], as decoders write them; those of raw packs are [C,H,W].
    """

    def __init__(
        self,
        size: Size,
        mode: str,
        coding: Coding = "encoded",
        value_range: Range | None = None,
    ):
        self.value_range = value_range
        self.size, self.mode, self.coding = size, mode, coding
        self.channels = 3 if mode == "RGB" else 1
        self.image_shape = (self.channels, *size)
        self.shape = self.image_shape if coding == "raw" else (*size, self.channels)
        self.jpeg: Any = jpeg_decoder() if coding != "raw" else None

    def __call__(self, data: Bytes, out: np.ndarray) -> None:
        """Decode into `out`, of shape `shape`; raises TorchcapsError for a broken image."""
        if self.coding == "raw":
            if len(data) != out.size:
                raise TorchcapsError(f"{len(data):,} bytes are not pixels of {self.shape}.")
            out[:] = np.frombuffer(data, np.uint8).reshape(self.shape)
        elif not (self.jpeg and self._jpeg(data, out)):
            pixels = read_image(
                io.BytesIO(data), self.size, self.mode, value_range=self.value_range
            )
            out[:] = pixels.permute(1, 2, 0).numpy()

    def _jpeg(self, data: Bytes, out: np.ndarray) -> bool:
        """Decode a usual JPEG; False if Pillow has to."""
        space = "RGB" if self.mode == "RGB" else "GRAY"
        try:
            if self.coding == "jpeg":
                self.jpeg.decode_jpeg(data, space, buffer=out)
                return True
            if not plain_jpeg(data):
                return False
            height, width, stored, _ = self.jpeg.decode_jpeg_header(data)
            if stored not in ("RGB", "YCbCr", "Gray") or (space == "GRAY" and stored != "Gray"):
                return False
            if (height, width) == self.size:
                self.jpeg.decode_jpeg(data, space, buffer=out)
                return True
            sides = sorted((height, width))
            if height * width > MAX_PIXELS // 4 or sides[1] > MAX_ASPECT * sides[0]:
                return False
            from PIL import Image

            pixels = self.jpeg.decode_jpeg(data, space)
            image = Image.fromarray(pixels if space == "RGB" else pixels[:, :, 0])
            out[:] = cover(image, *self.size).reshape(out.shape)
            return True
        except ValueError:  # damaged, or unusual: Pillow's message is the same for all formats
            return False


def default_threads(processes: int = 1) -> int:
    """One thread for each core, if so many processes share the cores that this one may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(MAX_THREADS, (cores or 1) // processes))


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    """Like torch.empty on the CPU; large tensors in huge pages where the system has them, since
    the first use of new memory takes longer than decoding into it.
    """
    count = torch.Size(shape).numel()
    if count * dtype.itemsize < HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, count * dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(shape)


class _Batch:
    """Pixels that threads are decoding."""

    def __init__(self, pixels: Tensor, parts: "list[Future[None]]"):
        self.pixels, self.parts = pixels, parts

    def wait(self) -> Tensor:
        for part in self.parts:
            part.result()
        return self.pixels


class Store:
    """Images of one size, read from records and decoded by threads."""

    def __init__(self, records: Records, decoder: Decoder, threads: int = 0):
        self.records, self.decoder = records, decoder
        self.threads = self._useful(threads or default_threads())
        self._pool: ThreadPoolExecutor | None = None
        self._pending: OrderedDict[bytes, _Batch] = OrderedDict()
        self._lock, self._local = Lock(), local()

    def _useful(self, threads: int) -> int:
        return min(threads, 1 + int(np.prod(self.decoder.shape)) // VALUES_OF_A_THREAD)

    def use_threads(self, threads: int) -> None:
        """Decode with so many threads from now on; with fewer where images are small."""
        threads = self._useful(threads)
        with self._lock:
            if threads != self.threads:
                self.threads, self._pool = threads, None

    def prefetch(self, rows: np.ndarray, pinned: bool = False) -> None:
        """Begin to decode rows that will be asked for."""
        key = rows.tobytes()
        with self._lock:
            if key not in self._pending:
                self._pending[key] = self._begin(rows, pinned)
            while len(self._pending) > PENDING:
                for part in self._pending.popitem(last=False)[1].parts:
                    part.cancel()

    def pixels(self, rows: np.ndarray, pinned: bool = False) -> Tensor:
        """The pixels of rows, uint8 [B,C,H,W]; pinned ones may be strided."""
        with self._lock:
            batch = self._pending.pop(rows.tobytes(), None) or self._begin(rows, pinned)
        return batch.wait()

    def _begin(self, rows: np.ndarray, pinned: bool) -> _Batch:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, "torchcaps-decode")
        direct = pinned or self.decoder.coding == "raw"
        shape = self.decoder.shape if direct else self.decoder.image_shape
        if pinned:
            pixels = torch.empty(len(rows), *shape, dtype=torch.uint8, pin_memory=True)
        else:
            pixels = empty(len(rows), *shape, dtype=torch.uint8)
        out, numbers = pixels.numpy(), rows.tolist()
        share = min(GROUP, -(-len(rows) // self.threads) or 1)
        starts = range(0, len(rows), share)
        parts = [
            self._pool.submit(self._fill, numbers[n : n + share], out[n : n + share], direct)
            for n in starts
        ]
        channels_last = direct and self.decoder.coding != "raw"
        return _Batch(pixels.permute(0, 3, 1, 2) if channels_last else pixels, parts)

    def _fill(self, numbers: list[int], out: np.ndarray, direct: bool) -> None:
        """Read and decode rows into `out`; a GPU moves the channels of those decoded directly."""
        decoded = out if direct else self._scratch(len(numbers))
        for number, pixels in zip(numbers, decoded, strict=True):
            data = self.records.read(number)
            try:
                self.decoder(data, pixels)
            except TorchcapsError as error:
                title, text = self.records.title(number), str(error).removeprefix("This: ")
                raise TorchcapsError(f"{self.records.name}: {title}: {text}") from None
        if not direct:
            np.copyto(out, decoded.transpose(0, 3, 1, 2))

    def _scratch(self, count: int) -> np.ndarray:
        """Memory of this thread for some images."""
        if not hasattr(self._local, "pixels"):
            self._local.pixels = np.empty((GROUP, *self.decoder.shape), np.uint8)
        return self._local.pixels[:count]


class StoredImages:
    """Images on disk in place of the tensor [N,C,H,W] of a split: indexing gives a view.

    Division and `float()` read and decode the images of a view, so `split.batch(rows)` works as for
    tensors.
    """

    ndim, dtype = 4, torch.uint8

    def __init__(self, store: Store, rows: Tensor, device: torch.device | str = "cpu"):
        self.store, self.rows, self.device = store, rows, torch.device(device)

    def __repr__(self) -> str:
        return f"StoredImages({len(self):,} of {self.store.records.name}, on disk)"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), *self.store.decoder.image_shape))

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def __getitem__(self, rows: Any) -> "StoredImages":
        rows = rows.cpu() if isinstance(rows, Tensor) else rows
        return StoredImages(self.store, self.rows[rows], self.device)

    def to(self, device: torch.device | str) -> "StoredImages":
        return StoredImages(self.store, self.rows, device)

    def prefetch(self) -> None:
        """Begin to decode the images of this view."""
        self.store.prefetch(self.rows.numpy(), self.is_cuda)

    def pixels(self) -> Tensor:
        """The images of this view, uint8 [N,C,H,W] on the device."""
        needed = self.shape.numel()
        if needed > LARGEST_VIEW:
            raise TorchcapsError(
                f"{self.store.records.name}: {len(self):,} images need {needed / 1e9:.0f} GB at "
                "once. This works on images in memory: give fewer images or a smaller size=."
            )
        pixels = self.store.pixels(self.rows.numpy(), self.is_cuda)
        return pixels.to(self.device, non_blocking=True).contiguous()

    def float(self) -> Tensor:
        pixels = self.pixels()
        if self.is_cuda:
            return pixels.float()
        return empty(*pixels.shape, dtype=torch.float32).copy_(pixels)

    def __truediv__(self, number: int) -> Tensor:
        return self.float().div_(number)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(name)
        raise TorchcapsError(
            f"{self.store.records.name}: this needs all images in memory (Tensor.{name}), and they "
            "are on disk. Give fewer images, a smaller size= or in_memory=true."
        )


def prefetch(images: Any, rows: Any) -> None:
    """Begin to decode rows of images on disk; nothing is to do for a tensor."""
    if isinstance(images, StoredImages):
        images[rows].prefetch()


def together(one: Any, two: Any) -> Any:
    """Concatenate images."""
    if isinstance(one, StoredImages) and isinstance(two, StoredImages) and one.store is two.store:
        return StoredImages(one.store, torch.cat([one.rows, two.rows]), one.device)
    return torch.cat([part.pixels() if isinstance(part, StoredImages) else part
                      for part in (one, two)])  # fmt: skip


def memory_bytes() -> int:
    """The memory for images: of this machine or its container, and of the GPU if there is one."""
    amounts = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else ""
    amounts += [int(text)] if text.isdecimal() else []
    if torch.cuda.is_available():
        amounts.append(torch.cuda.get_device_properties(0).total_memory)
    return min(amounts)


def must_stay_on_disk(count: int, size: Size, mode: str, in_memory: str = "auto") -> bool:
    """True if images are too large for the memory; in_memory: auto, or true or false to decide."""
    if in_memory not in ("auto", "true", "false"):
        raise TorchcapsError(f"in_memory={in_memory}: give auto, true or false.")
    needed = count * size[0] * size[1] * (3 if mode == "RGB" else 1)
    return in_memory == "false" or (in_memory == "auto" and needed > IN_MEMORY * memory_bytes())


def images_of(records: Records, decoder: Decoder, in_memory: str = "auto") -> tuple[Any, str]:
    """The images of records, in memory if they fit or on disk, and a phrase that says which.

    in_memory: auto, true or false
    """
    if decoder.size[0] * decoder.size[1] > MAX_PIXELS:
        raise TorchcapsError(f"{records.name}: images of such a size: give a smaller size=.")
    store, count = Store(records, decoder), len(records)
    needed = count * int(np.prod(decoder.shape))
    height, width = decoder.size
    text = f"{count:,} images of {height}x{width}, {needed / 1e9:.2g} GB"
    rows = torch.arange(count)
    if must_stay_on_disk(count, decoder.size, decoder.mode, in_memory):
        return StoredImages(store, rows), f"{text}: on disk, decoded by {store.threads} threads"
    images = torch.empty(count, *decoder.image_shape, dtype=torch.uint8)
    for start in range(0, count, 500):
        stop = min(start + 500, count)
        if stop < count:
            store.prefetch(np.arange(stop, min(stop + 500, count)))
        images[start:stop] = store.pixels(np.arange(start, stop))
    return images, f"{text}: in memory"
