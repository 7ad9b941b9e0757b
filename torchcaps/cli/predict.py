"""Commands that use a trained model: predict, embed, export."""

import csv as csv_format
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.progress import track
from rich.text import Text as RichText
from tyro.conf import Positional, arg

from torchcaps.cli.console import console, print_json, say
from torchcaps.cli.parse import AtOnce, Env, File, Folder, On, Text
from torchcaps.errors import UsageError
from torchcaps.escape import for_csv

Source = Annotated[str, Positional, arg(metavar="MODEL")]
Images = Annotated[tuple[Path, ...], Positional, arg(metavar="IMAGE", help_behavior_hint="")]
TopK = Annotated[int, arg(aliases=("--top",))]


def _batches(files: list[Path], size: int, label: str) -> Iterator[list[Path]]:
    """Some files at a time, with a progress bar if there are many."""
    parts = [files[n : n + size] for n in range(0, len(files), size)]
    hidden = len(parts) < 3 or not sys.stderr.isatty()
    return iter(track(parts, label, console=console, disable=hidden, transient=True))


def _in_parts(
    kind: Any, model: str, images: tuple[Path, ...], out: Path, *, on: str, env: tuple[str, ...],
    **options: Any,
) -> None:  # fmt: skip
    """Write the result of a whole data set in parts, with a progress bar."""
    from rich.progress import Progress

    from torchcaps.parts import run_parts
    from torchcaps.places.run import with_env

    if len(images) != 1:
        raise UsageError(f"--out {out}: give one data set, such as packed:PATH or a folder.")
    with Progress(console=console, disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(kind)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        result = run_parts(
            kind, model, str(images[0]), out, on=with_env(on, env), progress=progress, **options
        )
    shape = "x".join(map(str, result.shape))
    count = len(result.manifest["parts"])
    say(f"wrote {out}: {shape} in {count} parts. In Python: torchcaps.Parts({str(out)!r})")


def predict(
    model: Source,
    images: Images,
    /,
    top_k: TopK = 5,
    batch_size: int = 64,
    csv: bool = False,
    json: bool = False,
    out: Folder = None,
    part_size: int = 100_000,
    on: On = "local",
    env: Env = (),
    at_once: AtOnce = 0,
    force: bool = False,
) -> None:
    """Classify images: the most likely classes and their probabilities.

    With --out: a whole data set (folder:PATH, packed:PATH, hf:USER/SET, webdataset:PATH) in parts,
    which the same command completes after a kill.

    Examples: torchcaps predict runs/mine photo.jpg · torchcaps predict runs/mine photos/ --csv ·
    torchcaps predict runs/mine packed:millions --out classes --at-once 4

    Args:
        model: A run, a saved model, a pretrained model or a hub id.
        images: Image files and folders of images, or one data set.
        top_k: Number of classes to print.
        batch_size: Images at a time.
        csv: Print as CSV: file, class, probability.
        json: Print as JSON: a list of {file, classes: [{name, probability}]}.
        out: New folder for the results of a data set, in parts.
        part_size: Images of a part.
        on: Place where the parts are computed: local, slurm or ray, with options.
        env: Environment variables of this process that the parts get too, by name.
        at_once: Number of parts at a time; default: 1 here, all on a cluster.
        force: Replace the results of another model or data set.
    """
    if out is not None:
        if csv or json:
            raise UsageError("--csv and --json print; --out writes a folder. Give one of them.")
        return _in_parts(
            "predict", model, images, out, top_k=top_k, batch_size=batch_size,
            part_size=part_size, on=on, env=env, at_once=at_once, force=force,
        )  # fmt: skip
    from torchcaps.models.predict import image_files
    from torchcaps.training.load import load

    _positive(batch_size)
    files = image_files(images)
    loaded = load(model)
    predictions = [
        classes
        for part in _batches(files, batch_size, "predict")
        for classes in loaded.predict(part, top_k, batch_size)
    ]
    pairs = list(zip(map(str, files), predictions, strict=True))
    if json:
        return print_json(
            [{"file": f, "classes": [c._asdict() for c in classes]} for f, classes in pairs]
        )
    if csv:
        rows = [
            (for_csv(f), for_csv(c.name), f"{c.probability:.4f}")
            for f, classes in pairs
            for c in classes
        ]
        return _write_rows(sys.stdout, [("file", "class", "probability"), *rows])
    for file, classes in pairs:
        say(f"{file}  " + "  ".join(f"{c.name} {c.probability:.1%}" for c in classes))


def _positive(batch_size: int) -> None:
    if batch_size < 1:
        raise UsageError(f"--batch-size {batch_size}: it must be at least 1.")


def _write_rows(file: Any, rows: Any) -> None:
    csv_format.writer(file, lineterminator="\n").writerows(rows)


def embed(
    model: Source,
    images: Images,
    /,
    out: File,
    features: Text = "",
    batch_size: int = 64,
    part_size: int = 100_000,
    on: On = "local",
    env: Env = (),
    at_once: AtOnce = 0,
    force: bool = False,
) -> None:
    """Write a vector for each image, as .npy or .csv, or of a whole data set in parts.

    A folder for --out holds a data set (folder:PATH, packed:PATH, hf:USER/SET, webdataset:PATH) in
    parts, which the same command completes after a kill.

    Examples: torchcaps embed runs/mine photos/ --out photos.npy ·
    torchcaps embed runs/mine packed:millions --out vectors --at-once 4

    Args:
        model: A run, a saved model, a pretrained model or a hub id.
        images: Image files and folders of images, or one data set.
        out: A file, .npy (the images' names in a .txt beside it) or .csv, or a folder for parts.
        features: A representation of the model; default: the first.
        batch_size: Images at a time.
        part_size: Images of a part.
        on: Place where the parts are computed: local, slurm or ray, with options.
        env: Environment variables of this process that the parts get too, by name.
        at_once: Number of parts at a time; default: 1 here, all on a cluster.
        force: Replace files.
    """
    if not out.suffix:
        return _in_parts(
            "embed", model, images, out, features=features, batch_size=batch_size,
            part_size=part_size, on=on, env=env, at_once=at_once, force=force,
        )  # fmt: skip
    import numpy as np

    from torchcaps.api import embed as vectors_of
    from torchcaps.models.predict import image_files
    from torchcaps.outputs import check_file
    from torchcaps.training.load import load

    if out.suffix not in (".npy", ".csv"):
        raise UsageError(
            f"--out {out}: the name of a file ends in .npy or .csv, that of a folder in neither."
        )
    names = out.with_suffix(".txt")
    for path in (out, names) if out.suffix == ".npy" else (out,):
        check_file(path, force=force)
    _positive(batch_size)
    files = image_files(images)
    loaded = load(model)
    vectors = np.concatenate(
        [
            vectors_of(loaded, part, features=features, batch_size=batch_size).numpy()
            for part in _batches(files, batch_size, "embed")
        ]
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix == ".npy":
        np.save(out, vectors)
        names.write_text("".join(f"{f}\n" for f in files), "utf-8", "surrogateescape")
    else:
        head = ["file", *(f"feature_{n}" for n in range(vectors.shape[1]))]
        rows = (
            [for_csv(str(f)), *map(repr, map(float, v))]
            for f, v in zip(files, vectors, strict=True)
        )
        with out.open("w", newline="", encoding="utf-8") as file:
            _write_rows(file, [head, *rows])
    say(f"wrote {out}: {len(vectors)} vectors of {vectors.shape[1]}")


def export(
    model: Source,
    /,
    out: File,
    format: Literal["onnx", "torch", "web"] = "onnx",
    single_file: bool = False,
    runtime: Folder = None,
    force: bool = False,
) -> None:
    """Export a model for other programs, and check that the file's outputs are the model's.

    Examples: torchcaps export runs/mine --out mine.onnx ·
    torchcaps export runs/mine --format web --single-file --out mine.html

    Args:
        model: A run, a saved model, a pretrained model or a hub id.
        out: The file; the folder of a web page.
        format: ONNX, torch.export, or the explorer as a web page without a server.
        single_file: Write the web page as one file that opens from a disk.
        runtime: Folder of onnxruntime-web's files; default: those of the installation.
        force: Replace files.
    """
    from torchcaps.outputs import check_file

    if format == "web":
        return _export_web(model, out, single_file, runtime, force)
    if single_file or runtime:
        raise UsageError("--single-file and --runtime are for --format web.")
    by_suffix = {".onnx": "onnx", ".pt2": "torch"}.get(out.suffix.lower(), format)
    if by_suffix != format:
        raise UsageError(f"--out {out} has the suffix of --format {by_suffix}, not {format}.")
    check_file(out, force=force)
    from torchcaps.models.export import export as write
    from torchcaps.training.load import load

    loaded = load(model)
    error = write(loaded, out, format)
    shape = "x".join(map(str, loaded.config.image_shape))
    say(f"wrote {out}: images of {shape}, any batch size; largest difference {error:.1e}")


def _export_web(
    model: str, out: Path, single_file: bool, runtime: Path | None, force: bool
) -> None:
    from torchcaps.outputs import check_file, check_folder

    (check_file if single_file else check_folder)(out, force=force)
    from torchcaps.explorer.shelf import Shelf
    from torchcaps.explorer.web import export_web

    shelf = Shelf([model], bundled=False)
    with console.status(RichText(f"writing {out}")):
        export_web(shelf, out, single_file, runtime, force=force)
    size = sum(p.stat().st_size for p in ([out] if single_file else out.rglob("*")) if p.is_file())
    hint = "open it in a browser" if single_file else f"python -m http.server -d {out}"
    say(f"wrote {out}: {size / 1e6:.1f} MB; {hint}")
