"""Encoded images on disk by number: image files, Arrow tables, members of tar archives."""

import re
import tarfile
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchcaps.data.images import SUFFIXES
from torchcaps.errors import TorchcapsError

SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation", "dev"), "val"
)
"""Names of splits elsewhere, and what they are here."""
Bytes = bytes | memoryview
UNREADABLE = (ValueError, LookupError, TypeError, ArithmeticError, NotImplementedError, OSError)
"""Errors of pyarrow and numpy for damaged files."""


class Records:
    """Encoded images by number, each with a name, a label and a split.

    labels [N] int64 (-1: no label); splits: the rows of each split, in order, by its name ("" if
    the source has no splits)
    """

    def __init__(
        self,
        name: str,
        classes: tuple[str, ...],
        labels: Tensor,
        splits: dict[str, range],
        identity: str = "",
    ):
        self.name, self.classes, self.labels, self.splits = name, classes, labels, splits
        self.identity = identity
        """The sha256 of what determines names, labels and splits; empty if it is not known."""

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, number: int) -> Bytes:
        """The encoded image; raises a TorchcapsError that names the file."""
        raise NotImplementedError

    def title(self, number: int) -> str:
        """The name of an image, for errors and tables of predictions."""
        raise NotImplementedError


class FileRecords(Records):
    """Image files of a folder."""

    def __init__(self, name: str, folder: Path, paths: Sequence[Path], *more: Any):
        super().__init__(name, *more)
        self.folder, self.paths = folder, paths

    def read(self, number: int) -> bytes:
        try:
            return self.paths[number].read_bytes()
        except OSError as error:
            raise TorchcapsError(
                f"{self.paths[number]}: cannot be read ({error.strerror})."
            ) from None

    def title(self, number: int) -> str:
        return self.paths[number].relative_to(self.folder).as_posix()


class _Column(NamedTuple):
    """Binary values of one record batch, as the buffers of Arrow."""

    offsets: memoryview
    data: memoryview


def _binary(array: Any, file: str) -> _Column:
    """The buffers of a binary Arrow array, or of the `bytes` of a Hugging Face image."""
    import pyarrow as pa

    if pa.types.is_struct(array.type):
        names = [field.name for field in array.type]
        if "bytes" not in names:
            raise TorchcapsError(f"{file}: the images are not stored as bytes.")
        array = array.flatten()[names.index("bytes")]
    wide = pa.types.is_large_binary(array.type)
    if not wide and not pa.types.is_binary(array.type):
        raise TorchcapsError(f"{file}: a column of {array.type} does not hold images.")
    if array.null_count:
        raise TorchcapsError(f"{file}: {array.null_count} images are missing or are other files.")
    array.validate()
    _, offsets, data = array.buffers()
    # Arrow's buffers are signed bytes, which decoders refuse
    numbers = memoryview(offsets).cast("B").cast("q" if wide else "i")
    numbers = numbers[array.offset : array.offset + len(array) + 1]
    if len(numbers) <= len(array):
        raise ValueError("too few offsets")
    return _Column(numbers, memoryview(data).cast("B") if data is not None else memoryview(b""))


class ArrowRecords(Records):
    """The image column of Arrow record batches, read from the buffers of the memory map."""

    def __init__(
        self,
        name: str,
        batches: Iterable[tuple[str, Any]],
        classes: tuple[str, ...],
        splits: dict[str, range],
        identity: str = "",
        image: str = "image",
        label: str = "label",
    ):
        """batches: (file, record batch) in order; with a column `crc32` each read is checked"""
        self._files: list[str] = []
        self._columns: list[_Column] = []
        self._titles: list[Any] = []
        self._sums: list[memoryview | None] = []
        labels, starts = [], [0]
        for file, batch in batches:
            if not batch.num_rows:
                continue
            try:
                self._files.append(file)
                self._columns.append(_binary(batch.column(image), file))
                self._titles.append(_paths(batch.column(image)))
                sums = "crc32" in batch.schema.names
                self._sums.append(memoryview(batch.column("crc32").to_numpy()) if sums else None)
                labels.append(_labels(batch, label, file))
            except UNREADABLE as error:
                raise TorchcapsError(f"{file} is damaged ({type(error).__name__}).") from None
            if classes and not -1 <= labels[-1].min() <= labels[-1].max() < len(classes):
                raise TorchcapsError(f"{file}: a label is not one of its {len(classes)} classes.")
            starts.append(starts[-1] + batch.num_rows)
        super().__init__(
            name, classes, torch.from_numpy(np.concatenate(labels or [np.zeros(0, np.int64)])),
            splits, identity,
        )  # fmt: skip
        self._starts = starts
        self._numbers = memoryview(self.labels.numpy().data)

    def _place(self, number: int) -> tuple[int, int]:
        """The record batch of a row, and the row in it."""
        batch = bisect_right(self._starts, number) - 1
        return batch, number - self._starts[batch]

    def read(self, number: int) -> memoryview:
        batch, row = self._place(number)
        (offsets, data), sums = self._columns[batch], self._sums[batch]
        start, end = offsets[row], offsets[row + 1]
        part = data[start:end]
        whole = 0 <= start <= end <= len(data)
        if not whole or (sums is not None and checksum(part, self._numbers[number]) != sums[row]):
            raise TorchcapsError(
                f"{self._files[batch]} is damaged: the checksum of image {row:,} of a batch "
                f"({self.title(number)}) has changed. Restore the file, or pack the images again."
            )
        return part

    def title(self, number: int) -> str:
        batch, row = self._place(number)
        titles = self._titles[batch]
        text = None if titles is None else titles[row].as_py()
        return str(number) if text is None else text


def checksum(data: Bytes, label: int) -> int:
    """The crc32 of an image and its label."""
    return zlib.crc32(data, (label + 1) & 0xFFFFFFFF)


def _paths(array: Any) -> Any:
    """The names of images in a Hugging Face image column, if it has them."""
    import pyarrow as pa

    names = [field.name for field in array.type] if pa.types.is_struct(array.type) else []
    return array.flatten()[names.index("path")] if "path" in names else None


def _labels(batch: Any, label: str, file: str) -> np.ndarray:
    import pyarrow as pa

    if label not in batch.schema.names:
        return np.full(batch.num_rows, -1, np.int64)
    column = batch.column(label)
    if not pa.types.is_integer(column.type):
        raise TorchcapsError(f"{file}: labels of type {column.type}; give class numbers.")
    return column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)


class TarRecords(Records):
    """Images of WebDataset archives: members with one name and the suffixes of an image and .cls.

    The archives are indexed once and then read by number, so they must not be compressed.
    """

    def __init__(self, name: str, archives: Sequence[Path]):
        self._members: list[tuple[Path, str, int, int]] = []
        labels: list[str | None] = []
        splits: list[str] = []
        for path in archives:
            split = SPLITS.get(re.split(r"[^a-z]", path.name.lower())[0], "")
            for title, (start, length), label in _samples(path):
                self._members.append((path, title, start, length))
                labels.append(label)
                splits.append(split)
        order = sorted(range(len(splits)), key=lambda n: ["", *SPLITS.values()].index(splits[n]))
        self._members = [self._members[n] for n in order]
        labels, splits = [labels[n] for n in order], [splits[n] for n in order]
        super().__init__(name, *_numbered(labels, archives[0].parent), ranges(splits))

    def read(self, number: int) -> bytes:
        path, title, start, length = self._members[number]
        with path.open("rb") as file:
            file.seek(start)
            data = file.read(length)
        if len(data) < length:
            raise TorchcapsError(f"{path}: {title} is cut off; copy the archive again.")
        return data

    def title(self, number: int) -> str:
        return self._members[number][1]


def _samples(path: Path) -> Iterator[tuple[str, tuple[int, int], str | None]]:
    """(name, (offset, length) of the image, label) of the samples of an archive."""
    try:
        with tarfile.open(path, "r:") as archive:
            image, label, current = None, None, ""
            for member in archive:
                if not member.isfile():
                    continue
                folder, _, base = member.name.rpartition("/")
                stem, _, suffix = base.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if key != current:
                    if image is not None:
                        yield *image, label
                    image, label, current = None, None, key
                if f".{suffix.lower()}" in SUFFIXES:
                    image = member.name, (member.offset_data, member.size)
                elif suffix == "cls":
                    file = archive.extractfile(member)
                    label = file.read(1000).decode("utf-8", "replace").strip() if file else None
            if image is not None:
                yield *image, label
    except (tarfile.TarError, OSError) as error:
        raise TorchcapsError(
            f"{path}: not a readable tar archive without compression ({error})."
        ) from None


def _numbered(texts: Sequence[str | None], folder: Path) -> tuple[tuple[str, ...], Tensor]:
    """Class names and numbers of labels: numbers, named by classes.txt beside them, or names."""
    given = {text for text in texts if text is not None}
    if given and all(text.isdecimal() and len(text) < 7 for text in given):
        path = folder / "classes.txt"
        listed = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
        names = tuple(line.strip() for line in listed if line.strip())
        count = max(map(int, given)) + 1
        names = names if len(names) >= count else tuple(map(str, range(count)))
        numbers = {text: int(text) for text in given}
    else:
        names = tuple(sorted(given))
        numbers = {text: number for number, text in enumerate(names)}
    return names, torch.tensor([-1 if text is None else numbers[text] for text in texts])


def ranges(splits: Sequence[str]) -> dict[str, range]:
    """The rows of each split, where equal names stand together."""
    rows: dict[str, range] = {}
    for number, split in enumerate(splits):
        first = rows[split].start if split in rows else number
        rows[split] = range(first, number + 1)
    return rows
