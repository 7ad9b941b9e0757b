"""Commands that use a trained model: predict, embed, export."""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from rich.progress import track
from tyro.conf import Positional, arg

from torchcaps.cli.parse import File, Folder, Text
from torchcaps.cli.saying import console, print_json
from torchcaps.errors import Misused, TorchcapsError

Source = Annotated[str, Positional, arg(metavar="RUN|HUB")]
Pictures = Annotated[
    tuple[Path, ...], Positional, arg(metavar="IMAGE|FOLDER", help_behavior_hint="")
]
TOGETHER = 64
"""Images that a model sees at a time."""


def _files(places: tuple[Path, ...]) -> list[Path]:
    """Images as they are given, and those of folders in order."""
    from torchcaps.data.pictures import list_images

    if not places:
        raise Misused("Give an image or a folder of images.")
    found: list[Path] = []
    for place in places:
        inside = list_images(place) if place.is_dir() else [place]
        if not inside:
            raise TorchcapsError(f"{place}: no images in it.")
        if not place.exists():
            raise Misused(f"{place}: no such file.")
        found += inside
    return found


def _batches(files: list[Path], what: str) -> Iterator[list[Path]]:
    """Some files at a time, with a progress bar where there are many."""
    parts = [files[n : n + TOGETHER] for n in range(0, len(files), TOGETHER)]
    hidden = len(parts) < 3 or not sys.stderr.isatty()
    return iter(track(parts, what, console=console, disable=hidden, transient=True))


def predict(
    model: Source, images: Pictures, /, top: int = 5, csv: bool = False, json: bool = False
) -> None:
    """Say what images show: the likeliest classes and their probabilities.

    Examples: torchcaps predict runs/mine photo.jpg · torchcaps predict runs/mine photos/ --csv

    Args:
        model: The folder of a run or of a saved model, or a hub id.
        images: Image files, and folders of them.
        top: How many classes are named; all where there are fewer.
        csv: Whether a table for other programs is printed: file, class, probability.
        json: Whether a list of {file, classes: [{name, probability}]} is printed.
    """
    from torchcaps.train.load import load

    files, found = _files(images), load(model)
    answers = [a for part in _batches(files, "predict") for a in found.predict(part, top)]
    if json:
        return print_json(
            [
                {"file": str(f), "classes": [a._asdict() for a in said]}
                for f, said in zip(files, answers, strict=True)
            ]
        )
    rows = [
        (str(f), a.name, f"{a.probability:.4f}")
        for f, said in zip(files, answers, strict=True)
        for a in said
    ]
    if csv:
        return _write_rows(sys.stdout, [("file", "class", "probability"), *rows])
    for file, said in zip(files, answers, strict=True):
        words = "  ".join(f"{a.name} {a.probability:.1%}" for a in said)
        console.print(f"{file}  {words}", soft_wrap=True, highlight=False, markup=False)


def _write_rows(file, rows) -> None:
    csv.writer(file, lineterminator="\n").writerows(rows)


def embed(model: Source, images: Pictures, /, out: File, features: Text = "") -> None:
    """Write what a model makes of images: a vector each, as .npy or .csv.

    Example: torchcaps embed runs/mine photos/ --out photos.npy

    Args:
        model: The folder of a run or of a saved model, or a hub id.
        images: Image files, and folders of them.
        out: The file: .npy with the images' names in a .txt beside it, or .csv, the name first.
        features: Which of the model's representations; empty: the usual one.
    """
    import numpy as np
    import torch

    from torchcaps.analysis.probing import representation
    from torchcaps.models.predicting import read_images
    from torchcaps.train.load import load

    if out.suffix not in (".npy", ".csv"):
        raise Misused(f"--out {out}: give a name that ends in .npy or .csv.")
    names = out.with_suffix(".txt")
    if out.suffix == ".npy" and names.exists() and not out.exists():
        raise TorchcapsError(f"{names} is there already, where the images' names are to stand.")
    files, found = _files(images), load(model)
    rows = []
    with torch.no_grad():
        for part in _batches(files, "embed"):
            rows.append(representation(found, read_images(found, part), features).cpu().numpy())
    vectors = np.concatenate(rows)
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".npy":
        np.save(out, vectors)
        names.write_text("".join(f"{f}\n" for f in files))
    else:
        with out.open("w", newline="") as file:
            _write_rows(
                file,
                ([str(f), *map(repr, map(float, v))] for f, v in zip(files, vectors, strict=True)),
            )
    text = f"wrote {out}: {len(vectors)} vectors of {vectors.shape[1]}"
    console.print(text, soft_wrap=True, markup=False)


def export(
    model: Source,
    /,
    out: File,
    format: Literal["onnx", "torch", "web"] = "onnx",
    single_file: bool = False,
    runtime: Folder = None,
) -> None:
    """Write a model as a file for other programs, and check that the file answers like the model.

    Examples: torchcaps export runs/mine --out mine.onnx ·
    torchcaps export runs/mine --format web --single-file --out mine.html

    Args:
        model: The folder of a run or of a saved model, a model of the zoo, or a hub id.
        out: The file; of a web page the folder.
        format: ONNX, torch.export's own, or the explorer as a web page that needs no server.
        single_file: Whether the web page is one file that opens from a disk.
        runtime: The folder of onnxruntime-web's files, where `make vendor` has not brought them.
    """
    if format == "web":
        return _export_web(model, out, single_file, runtime)
    if single_file or runtime:
        raise Misused("--single-file and --runtime are for --format web.")
    meant = {".onnx": "onnx", ".pt2": "torch"}.get(out.suffix.lower(), format)
    if meant != format:
        raise Misused(f"{out} is named like --format {meant}, and the format is {format}.")
    from torchcaps.models.exporting import export as write
    from torchcaps.train.load import load

    found = load(model)
    worst = write(found, out, format)
    shape = "x".join(map(str, found.config.image_shape))
    text = f"wrote {out}: images of {shape}, any number; largest difference {worst:.1e}"
    console.print(text, soft_wrap=True, markup=False)


def _export_web(model: str, out: Path, single_file: bool, runtime: Path | None) -> None:
    from torchcaps.explorer.shelf import Shelf
    from torchcaps.explorer.web import export_web

    shelf = Shelf([model], zoo=False)
    with console.status(f"writing {out}"):
        export_web(shelf, out, single_file, runtime)
    size = sum(p.stat().st_size for p in ([out] if single_file else out.rglob("*")) if p.is_file())
    how = "open it in a browser" if single_file else f"python -m http.server -d {out}"
    console.print(f"wrote {out}: {size / 1e6:.1f} MB; {how}", soft_wrap=True, markup=False)
