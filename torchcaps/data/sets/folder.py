"""Image folders: `folder:PATH`, with or without labels.

    PATH/CLASS/…                   holds out a tenth for testing, a tenth of the rest for validation
    PATH/{train,val,test}/CLASS/…  the given splits; without test/ val/ is the test split
    PATH/…                         images without labels
    labels=FILE.csv                a table with columns file and label, and optionally split; with a
                                   column labels several for an image: cat;dog, or none

Gray images of 16 bits and float images have one scale, range=LO..HI (`data/value_range.py`).
Other folders next to train/ are an error, unless `others` is ignore or classes.
"""

import csv
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torchcaps.data.dataset import Dataset, Split, hold_out, with_validation
from torchcaps.data.images import SUFFIXES, as_size, list_images, read_images, values_of
from torchcaps.data.records import SPLITS, FileRecords, ranges
from torchcaps.data.registry import register
from torchcaps.data.source import sha256
from torchcaps.data.stream import Decoder, images_of, must_stay_on_disk
from torchcaps.data.value_range import Range, as_range, as_text, default_range
from torchcaps.errors import TorchcapsError

_FILES = ("file", "filename", "file_name", "image", "image_id", "path", "id")
_LABELS = ("label", "class", "category", "target")
TRAINING = ("", "train")
"""Splits of files that may be training files: without splits, all."""


class File(NamedTuple):
    """An image file with its label and split."""

    path: Path
    label: str | tuple[str, ...] | None
    """Several labels of an image are a tuple."""
    split: str
    """train, val, test, or empty if not given."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its labels, if any."""
        return (self.label,) if isinstance(self.label, str) else self.label or ()


def load_folder(
    name: str,
    folder: Path,
    *,
    seed: int,
    size: int | str,
    mode: str,
    note: str = "",
    others: str = "refuse",
    skip_broken: bool = False,
    labels: str = "",
    range: str = "",
    follow_links: bool = False,
    in_memory: str = "auto",
) -> Dataset:
    """Load the images of a folder with its splits, or with new splits if it has none."""
    if mode not in ("L", "RGB"):
        raise TorchcapsError(f"mode={mode!r}: give L (gray) or RGB.")
    sides = as_size(size)
    given = as_range(range) if range else None
    files, classes, notes = list_files(folder, labels, others, follow_links)
    notes = [note, *notes] if note else notes
    storage = ""
    if must_stay_on_disk(len(files), sides, mode, in_memory):
        records = file_records(name, folder, files, classes)
        value_range = given or _range_of(folder, files)
        decoder = Decoder(sides, mode, value_range=value_range)
        images, storage = images_of(records, decoder, "false")
        notes += _about_range(given, value_range)
        data = Split(images, records.labels, {"file": torch.arange(len(records.labels))})
        splits = {split: data[rows.start : rows.stop] for split, rows in records.splits.items()}
        readable, paths = files, records.paths
    else:
        fit = {n for n, file in enumerate(files) if file.split in TRAINING}
        pictures = read_images([f.path for f in files], sides, mode, skip_broken, given, fit)
        readable, value_range = [files[n] for n in pictures.rows], pictures.value_range
        splits = _labelled(pictures.images, readable, classes)
        notes += _about_range(given, value_range, pictures.clipped, pictures.coarse)
        paths = [f.path for f in readable]
    if broken := len(files) - len(readable):
        notes.append(f"{broken} of {len(files)} files could not be read and are left out")
    if unreadable := sorted(set(classes) - {n for f in readable for n in f.names}):
        raise TorchcapsError(f"{folder}: no image of {', '.join(unreadable)} can be read.")
    data = split_up(name, folder, splits, classes, seed, "; ".join(notes))
    return replace(
        data,
        files=_identity(folder, readable),
        paths=tuple(path.relative_to(folder).as_posix() for path in paths),
        storage=storage,
        value_range=value_range,
        unsplit=not readable[0].split,
    )


def list_files(
    folder: Path, labels: str = "", others: str = "refuse", follow_links: bool = False
) -> tuple[list[File], tuple[str, ...], list[str]]:
    """The images of a folder, their classes, and remarks."""
    if others not in ("refuse", "ignore", "classes"):
        raise TorchcapsError(f"others={others}: give ignore or classes.")
    if not folder.is_dir():
        raise TorchcapsError(f"{folder}: no such folder.")
    images = list_images(folder, follow_links)
    if not images:
        raise TorchcapsError(f"{folder}: no images ({', '.join(sorted(SUFFIXES))}) in it.")
    files = _from_table(folder, images, labels) if labels else _from_tree(folder, images, others)
    unused = len(images) - len(files)
    notes = [f"{unused} images without a row or split are left out"] if unused else []
    return files, _classes(folder, files), notes


def file_records(
    name: str, folder: Path, files: list[File], classes: tuple[str, ...]
) -> FileRecords:
    """The files of a folder by number, the splits one after the other."""
    order = ["", "train", "val", "test"]
    files = sorted(files, key=lambda f: order.index(f.split))
    numbers = _numbers(files, classes)
    splits = ranges([f.split for f in files])
    return FileRecords(
        name, folder, [f.path for f in files], classes, numbers, splits, _identity(folder, files)
    )


def _identity(folder: Path, files: list[File]) -> str:
    """The sha256 of relative paths, labels and splits."""
    rows = sorted(
        (f.path.relative_to(folder).as_posix(), ";".join(f.names), f.split) for f in files
    )
    return sha256(json.dumps(rows).encode())


def _from_tree(folder: Path, images: list[Path], others: str) -> list[File]:
    """Labels and splits from class folders, with or without train/val/test above them."""
    relative = [(path, path.relative_to(folder).parts) for path in images]
    tops = sorted({parts[0] for _, parts in relative if len(parts) > 1})
    kinds = {top: SPLITS[top.lower()] for top in tops if top.lower() in SPLITS}
    if not kinds or others == "classes":
        return [File(p, parts[0] if len(parts) > 1 else None, "") for p, parts in relative]
    other_folders = [top for top in tops if top not in kinds]
    if "train" not in kinds.values():
        raise TorchcapsError(
            f"{folder}: {_list(kinds)} without train/; give others=classes if these are classes."
        )
    if other_folders and others != "ignore":
        raise TorchcapsError(
            f"{folder}: {_list(other_folders)} beside {_list(kinds)}; others=ignore skips them, "
            "others=classes uses every folder as a class."
        )
    if len(set(kinds.values())) < len(kinds):
        raise TorchcapsError(f"{folder}: {_list(kinds)}: two are the same split.")
    return [
        File(path, parts[1] if len(parts) > 2 else None, kinds[parts[0]])
        for path, parts in relative
        if len(parts) > 1 and parts[0] in kinds
    ]


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"{name}/" for name in names)


def _from_table(folder: Path, images: list[Path], labels: str) -> list[File]:
    """Labels and splits from a CSV table; names are relative to the folder, suffixes optional."""
    table = folder / labels if (folder / labels).is_file() else Path(labels).expanduser()
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TorchcapsError(f"labels={labels}: not a readable table ({error}).") from None
    columns = {str(key).strip().lower(): key for key in (rows[0] if rows else {})}
    file_column, label_column = (
        next((columns[n] for n in names if n in columns), "") for names in (_FILES, _LABELS)
    )
    several = not label_column and "labels" in columns
    label_column = columns["labels"] if several else label_column
    if not file_column or not label_column:
        raise TorchcapsError(
            f"{table}: no columns {_FILES[0]} and {_LABELS[0]} in the first line. Its columns: "
            f"{', '.join(columns) or 'none'}."
        )
    by_name: dict[str, Path] = {}
    for path in images:  # the full name first, then without folders or suffix
        relative = path.relative_to(folder)
        for text in (relative, relative.with_suffix(""), Path(path.name), Path(path.stem)):
            by_name.setdefault(text.as_posix(), path)
    files, unknown = [], []
    for row in rows:
        name = (row[file_column] or "").strip()
        path = by_name.get(Path(name).as_posix()) if name else None
        split = (row.get(columns.get("split", "")) or "").strip().lower()
        label = (row[label_column] or "").strip()
        if path is None or (split and split not in SPLITS) or not (label or several):
            unknown.append(f"{name or '(empty)'}{f' ({split})' if split else ''}")
            continue
        names = tuple(dict.fromkeys(t.strip() for t in label.split(";") if t.strip()))
        files.append(File(path, names if several else label, SPLITS.get(split, "")))
    if unknown:
        more = f" and {len(unknown) - 10} more" if len(unknown) > 10 else ""
        raise TorchcapsError(
            f"{table}: {len(unknown)} of {len(rows)} lines have an unknown image or split, or no "
            f"label: {', '.join(unknown[:10])}{more}."
        )
    if len({f.path for f in files}) < len(files):
        raise TorchcapsError(f"{table}: it names an image twice.")
    if len({bool(f.split) for f in files}) > 1:
        raise TorchcapsError(f"{table}: some lines have a split, some have none. Give all a split.")
    return files


def _classes(folder: Path, files: list[File]) -> tuple[str, ...]:
    """Sorted class names; raises if another split has a class that train lacks."""
    first = files[0].split and "train"
    classes = sorted({name for f in files if f.split == first for name in f.names})
    unknown = sorted({name for f in files for name in f.names} - set(classes))
    if unknown:
        raise TorchcapsError(f"{folder}: classes {unknown} are not in the train split.")
    return tuple(classes)


def _numbers(files: list[File], classes: tuple[str, ...]) -> Tensor:
    """Labels by number [N], or [N,M] where images have up to M labels; -1: no label."""
    numbers = {name: n for n, name in enumerate(classes)}
    rows = [[numbers[name] for name in file.names] for file in files]
    several = any(isinstance(file.label, tuple) for file in files)
    most = max(2, *map(len, rows)) if several else 1
    labels = torch.tensor([row + [-1] * (most - len(row)) for row in rows])
    return labels if several else labels[:, 0]


def _range_of(folder: Path, files: list[File]) -> Range | None:
    """The range of images on disk with more than 8 bits; None without such images."""
    values = values_of([file.path for file in files if file.split in TRAINING])
    return default_range(values, str(folder)) if values else None


def _about_range(
    given: Range | None, used: Range | None, clipped: int = 0, coarse: int = 0
) -> list[str]:
    """Remarks on images with more than 8 bits."""
    notes = []
    if used:
        change = "" if given else "; range=LO..HI sets another"
        notes.append(f"gray values {as_text(used)}{change}")
    elif given:
        notes.append(f"range={as_text(given)} is not used: these images have 8 bits")
    if clipped:
        notes.append(f"{clipped:,} images have values outside the range, clipped")
    if coarse:
        notes.append(f"{coarse:,} color images of 16 bits are read by their upper 8")
    return notes


def _labelled(images: Tensor, files: list[File], classes: tuple[str, ...]) -> dict[str, Split]:
    """The images of these files with their labels, by the name of their split."""
    labels = _numbers(files, classes)
    data = Split(images, labels, {"file": torch.arange(len(labels))})
    return {
        split: data[torch.tensor([f.split == split for f in files])]
        for split in dict.fromkeys(f.split for f in files)
    }


def split_up(
    name: str,
    folder: Path,
    splits: dict[str, Split],
    classes: tuple[str, ...],
    seed: int,
    note: str,
) -> Dataset:
    """Make the data set; hold out validation and test images if these splits are missing."""
    train = splits.get("", splits.get("train"))
    if train is None:
        raise TorchcapsError(f"{folder}: no image of the train split can be read.")
    val, test = splits.get("val"), splits.get("test")
    if test is None and val is not None:
        test, val = val, None
    if test is None:
        kept, held = _hold_out(folder, train.labels, 0)  # the same test images for every seed
        train, test, seed = train[kept], train[held], seed + ("" in splits)
    if val is not None:
        return Dataset(name, train, val, test, classes, note)
    if len(hold_out(train.labels, seed=seed)[1]) >= len(train) // 20:
        return with_validation(name, train, test, classes, seed=seed, note=note)
    kept, held = _hold_out(folder, train.labels, seed)
    return Dataset(name, train[kept], train[held], test, classes, note)


def _hold_out(folder: Path, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Hold out a tenth of every class, or of all images if the classes are too small."""
    kept, held = hold_out(labels, 0.1, seed)
    if len(held) >= max(1, len(labels) // 20):
        return kept, held
    if len(labels) < 3:
        raise TorchcapsError(f"{folder}: too few images to split ({len(labels)}). Give at least 3.")
    kept, held = hold_out(torch.zeros_like(labels), 0.1, seed)
    return (kept, held) if len(held) else (kept[:-1], kept[-1:])


@register(
    "folder",
    "your own images: folder:PATH[,size=64|48x64][,mode=RGB|L][,labels=FILE.csv]"
    "[,range=LO..HI][,others=ignore|classes][,skip_broken=true][,follow_links=true]"
    "[,in_memory=false]",
    revision=2,
)
def folder(
    root: Path,
    path: str,
    *,
    seed: int,
    size: str = "64",
    mode: str = "RGB",
    labels: str = "",
    others: str = "refuse",
    skip_broken: bool = False,
    range: str = "",
    follow_links: bool = False,
    in_memory: str = "auto",
) -> Dataset:
    """Class subfolders, with or without train/val/test above them; other images have no labels."""
    del root
    return load_folder(
        f"folder:{path}",
        Path(path).expanduser(),
        seed=seed,
        size=size,
        mode=mode,
        labels=labels,
        others=others,
        skip_broken=skip_broken,
        range=range,
        follow_links=follow_links,
        in_memory=in_memory,
    )
