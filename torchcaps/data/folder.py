"""The user's own images: `folder:PATH`, as people have them, labelled or not.

    PATH/CLASS/…                   a tenth is held out to test, and a tenth of the rest to choose
    PATH/{train,val,test}/CLASS/…  splits as they are; val alone is the test split
    PATH/…                         images without labels
    labels=FILE.csv                columns file and label, and split where there is one

A folder beside train/ is refused unless `others` says what it is.
"""

import csv
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from torchcaps.data.dataset import Dataset, Split, hold_out, with_validation
from torchcaps.data.pictures import SUFFIXES, Size, as_size, list_images, read_images
from torchcaps.data.registry import register
from torchcaps.data.source import sha256
from torchcaps.errors import TorchcapsError

_KIND = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation", "dev"), "val"
)
_FILES = ("file", "filename", "file_name", "image", "image_id", "path", "id")
_LABELS = ("label", "class", "category", "target")
Others = Literal["refuse", "ignore", "classes"]


class File(NamedTuple):
    path: Path
    label: str | None
    split: str
    """train, val or test; empty: not said."""


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
) -> Dataset:
    """Every image of a folder, in the splits that it has or in new ones."""
    if mode not in ("L", "RGB"):
        raise TorchcapsError(f"mode={mode!r}: give L (grey) or RGB.")
    if others not in ("refuse", "ignore", "classes"):
        raise TorchcapsError(f"others={others}: give ignore or classes.")
    if not folder.is_dir():
        raise TorchcapsError(f"{folder}: no such folder.")
    sides = as_size(size)
    images = list_images(folder)
    if not images:
        raise TorchcapsError(f"{folder}: no images ({', '.join(sorted(SUFFIXES))}) in it.")
    files = _of_table(folder, images, labels) if labels else _of_tree(folder, images, others)
    left = len(images) - len(files)
    notes = [note] * bool(note) + [f"{left} images that nothing names are left out"] * bool(left)
    classes = _classes(folder, files)
    kept, found = _read(files, classes, sides, mode, skip_broken)
    if broken := len(files) - len(kept):
        notes.append(f"{broken} of {len(files)} files could not be read and are left out")
    if gone := sorted(set(classes) - {f.label for f in kept}):
        raise TorchcapsError(f"{folder}: no image of {', '.join(gone)} can be read.")
    made = _split(name, folder, found, classes, seed, "; ".join(notes))
    return replace(made, files=_identity(folder, kept))


def _identity(folder: Path, files: list[File]) -> str:
    """The sha256 of what decides the splits, wherever the folder lies."""
    told = sorted((f.path.relative_to(folder).as_posix(), f.label or "", f.split) for f in files)
    return sha256(json.dumps(told).encode())


def _of_tree(folder: Path, images: list[Path], others: str) -> list[File]:
    """Class folders, or train/val/test above them."""
    inside = [(path, path.relative_to(folder).parts) for path in images]
    tops = sorted({parts[0] for _, parts in inside if len(parts) > 1})
    kinds = {top: _KIND[top.lower()] for top in tops if top.lower() in _KIND}
    if not kinds or others == "classes":
        return [File(p, parts[0] if len(parts) > 1 else None, "") for p, parts in inside]
    beside = [top for top in tops if top not in kinds]
    if "train" not in kinds.values():
        raise TorchcapsError(
            f"{folder}: {_list(kinds)} without train/; others=classes if these are classes."
        )
    if beside and others != "ignore":
        raise TorchcapsError(
            f"{folder}: {_list(beside)} beside {_list(kinds)}; others=ignore leaves that out, "
            "others=classes takes every folder for a class."
        )
    if len(set(kinds.values())) < len(kinds):
        raise TorchcapsError(f"{folder}: of {_list(kinds)} two are the same split.")
    return [
        File(path, parts[1] if len(parts) > 2 else None, kinds[parts[0]])
        for path, parts in inside
        if len(parts) > 1 and parts[0] in kinds
    ]


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"{name}/" for name in names)


def _of_table(folder: Path, images: list[Path], labels: str) -> list[File]:
    """Files that a table of comma-separated values names, relative to the folder, with or without
    their suffix.
    """
    table = folder / labels if (folder / labels).is_file() else Path(labels).expanduser()
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TorchcapsError(f"labels={labels}: not a readable table ({error}).") from None
    columns = {str(key).strip().lower(): key for key in (rows[0] if rows else {})}
    where, what = (next((columns[n] for n in ns if n in columns), "") for ns in (_FILES, _LABELS))
    if not where or not what:
        raise TorchcapsError(
            f"{table}: its first line names no columns {_FILES[0]} and {_LABELS[0]}, but "
            f"{', '.join(columns) or 'nothing'}."
        )
    known: dict[str, Path] = {}
    for path in images:  # a whole name before one without folders or suffix
        relative = path.relative_to(folder)
        for text in (relative, relative.with_suffix(""), Path(path.name), Path(path.stem)):
            known.setdefault(text.as_posix(), path)
    found, unknown = [], []
    for row in rows:
        named = (row[where] or "").strip()
        path = known.get(Path(named).as_posix()) if named else None
        split = (row.get(columns.get("split", "")) or "").strip().lower()
        if path is None or (split and split not in _KIND) or not row[what]:
            unknown.append(f"{named or '(nothing)'}{f' ({split})' if split else ''}")
        else:
            found.append(File(path, row[what].strip(), _KIND.get(split, "")))
    if unknown:
        more = f" and {len(unknown) - 10} more" if len(unknown) > 10 else ""
        raise TorchcapsError(
            f"{table}: {len(unknown)} of {len(rows)} lines name no image, label or split of this "
            f"folder: {', '.join(unknown[:10])}{more}."
        )
    if len({f.path for f in found}) < len(found):
        raise TorchcapsError(f"{table}: it names an image twice.")
    if len({bool(f.split) for f in found}) > 1:
        raise TorchcapsError(f"{table}: some of its lines have a split, and some have none.")
    return found


def _classes(folder: Path, files: list[File]) -> tuple[str, ...]:
    """Names in order; those of the other splits must be among train's."""
    first = files[0].split and "train"
    classes = sorted({f.label for f in files if f.label is not None and f.split == first})
    strange = sorted({f.label for f in files if f.label is not None} - set(classes))
    if strange:
        raise TorchcapsError(f"{folder}: class folders {strange} are not in the train tree.")
    return tuple(classes)


def _read(
    files: list[File], classes: tuple[str, ...], size: Size, mode: str, skip_broken: bool
) -> tuple[list[File], dict[str, Split]]:
    place = {name: n for n, name in enumerate(classes)}
    images, whole = read_images([f.path for f in files], size, mode, skip_broken)
    kept = [files[n] for n in whole]
    labels = torch.tensor([-1 if f.label is None else place[f.label] for f in kept])
    everything, found = Split(images, labels), {}
    for split in dict.fromkeys(f.split for f in kept):
        found[split] = everything[torch.tensor([f.split == split for f in kept])]
    return kept, found


def _split(
    name: str,
    folder: Path,
    found: dict[str, Split],
    classes: tuple[str, ...],
    seed: int,
    note: str,
) -> Dataset:
    whole = found.get("", found.get("train"))
    if whole is None:
        raise TorchcapsError(f"{folder}: no image of its train tree can be read.")
    val, test = found.get("val"), found.get("test")
    if test is None and val is not None:
        test, val = val, None
    if test is None:
        kept, held = _hold_out(folder, whole.labels, seed)
        whole, test, seed = whole[kept], whole[held], seed + ("" in found)
    if val is not None:
        return Dataset(name, whole, val, test, classes, note)
    if len(hold_out(whole.labels, seed=seed)[1]) >= len(whole) // 20:
        return with_validation(name, whole, test, classes, seed=seed, note=note)
    kept, held = _hold_out(folder, whole.labels, seed)
    return Dataset(name, whole[kept], whole[held], test, classes, note)


def _hold_out(folder: Path, labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """A tenth of every class, or of all where classes are too small to give one."""
    kept, held = hold_out(labels, 0.1, seed)
    if len(held) >= max(1, len(labels) // 20):
        return kept, held
    if len(labels) < 3:
        raise TorchcapsError(f"{folder}: too few images to split ({len(labels)}).")
    kept, held = hold_out(torch.zeros_like(labels), 0.1, seed)
    return (kept, held) if len(held) else (kept[:-1], kept[-1:])


@register(
    "folder",
    "your own images: folder:PATH[,size=64|48x64][,mode=RGB|L][,labels=FILE.csv]"
    "[,others=ignore|classes][,skip_broken=true]",
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
) -> Dataset:
    """Class subfolders, with or without train/val/test above them; loose images are unlabelled."""
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
    )
