"""Packs: a data set of images as Arrow shards with checksums, written once, read by number.

    OUT/torchcaps.json         classes, coding, and for each shard its rows, bytes and sha256
    OUT/train-00000.arrow      columns image (bytes, path), label, crc32; Hugging Face's
                               load_dataset("arrow", data_files="OUT/train-*.arrow") reads it, too

Without a size the image files are kept byte by byte; with one they are resized once. Shard k holds
fixed rows, so a killed pack continues with the shards that are missing.
"""

import io
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torchcaps.data.images import FORMATS, Size, read_image
from torchcaps.data.records import UNREADABLE, ArrowRecords, Bytes, Records, checksum
from torchcaps.data.source import sha256, sha256_file
from torchcaps.data.stream import plain_jpeg
from torchcaps.data.value_range import Range
from torchcaps.errors import TorchcapsError, require
from torchcaps.outputs import check_outside_runs
from torchcaps.typed import read_object

VERSION = 1
MANIFEST = "torchcaps.json"
PLAN = "unfinished.json"
SHARD_IMAGES = 10_000
BATCH_IMAGES = 250
"""Images of an Arrow record batch, which are in memory at once while packing."""
MAX_NAMED = 10
Progress = Callable[[int], None]


class Packed(NamedTuple):
    """An encoded image for a shard: its bytes, size, and whether it is a plain JPEG."""

    data: bytes
    size: Size
    kind: Literal["color", "gray", ""]
    """Of a plain JPEG; empty for others."""


def _keep(data: Bytes, value_range: Range | None) -> Packed:
    """An image file as it is, after a check that it can be decoded."""
    from PIL import Image, ImageOps, features

    formats = (*FORMATS, "AVIF") if features.check("avif") else FORMATS
    try:
        with Image.open(io.BytesIO(data), formats=formats) as image:
            kinds = {"RGB": "color", "L": "gray"} if image.format == "JPEG" else {}
            kind = kinds.get(image.mode, "") if plain_jpeg(data) else ""
            turned = ImageOps.exif_transpose(image) if image.getexif() else image
            size = turned.height, turned.width
    except Exception as error:  # Pillow raises many kinds
        raise TorchcapsError(f"not an image ({type(error).__name__}).") from None
    read_image(io.BytesIO(data), size, "RGB", value_range=value_range)
    return Packed(bytes(data), size, kind)  # pyright: ignore[reportArgumentType]


def _resize(
    data: Bytes, size: Size, mode: str, raw: bool, quality: int, value_range: Range | None
) -> Packed:
    """An image of the given size, as pixels or JPEG."""
    from PIL import Image

    planes = read_image(io.BytesIO(data), size, mode, value_range=value_range)
    if raw:
        return Packed(planes.numpy().tobytes(), size, "")
    pixels = planes.permute(1, 2, 0).contiguous().numpy()
    file = io.BytesIO()
    Image.fromarray(pixels if mode == "RGB" else pixels[:, :, 0]).save(
        file, "JPEG", quality=quality
    )
    return Packed(file.getvalue(), size, "color" if mode == "RGB" else "gray")


def pack(
    records: Records,
    out: Path,
    *,
    size: Size | None = None,
    mode: str = "RGB",
    coding: Literal["jpeg", "raw"] = "jpeg",
    quality: int = 90,
    value_range: Range | None = None,
    skip_broken: bool = False,
    progress: Progress = lambda count: None,
) -> dict[str, Any]:
    """Write records as a pack, or continue one that was interrupted. -> its manifest

    size: resize to cover it and crop the center; None: keep the image files. coding: JPEG of a
    quality, or raw pixels; both need a size. value_range: of images with more than 8 bits
    """
    require("pyarrow", "packed")
    if coding == "raw" and size is None:
        raise TorchcapsError("coding=raw needs one size for all images: add size=.")
    plan = {
        "version": VERSION, "source": records.name, "classes": list(records.classes),
        "size": list(size) if size else None, "mode": mode if size else "",
        "coding": coding if size else "encoded", "quality": quality if size else 0,
        "images": {split or "all": len(rows) for split, rows in records.splits.items()},
        "skip_broken": skip_broken, "value_range": list(value_range) if value_range else None,
    }  # fmt: skip
    _begin(out, plan)

    def encode(number: int) -> Packed | TorchcapsError:
        data = records.read(number)
        try:
            if size is None:
                return _keep(data, value_range)
            return _resize(data, size, mode, coding == "raw", quality, value_range)
        except TorchcapsError as error:
            text = str(error).removeprefix("This: ")
            return TorchcapsError(f"{records.title(number)}: {text}")

    shards = []
    with ThreadPoolExecutor() as pool:
        for split, rows in records.splits.items():
            for n, start in enumerate(range(0, len(rows), SHARD_IMAGES)):
                path = out / f"{split or 'all'}-{n:05}.arrow"
                part = rows[start : start + SHARD_IMAGES]
                stored = path.with_suffix(".json")
                if stored.exists() and path.exists():
                    shards.append(read_object(stored))
                else:
                    codes = ((batch, list(pool.map(encode, batch))) for batch in _batched(part))
                    shard = _write_shard(path, records, codes, coding == "raw", skip_broken)
                    shards.append({"split": split, **shard})
                    _write_json(stored, shards[-1])
                progress(len(part))
    return _finish(out, plan, shards)


def _batched(rows: range) -> Iterator[range]:
    return (rows[n : n + BATCH_IMAGES] for n in range(0, len(rows), BATCH_IMAGES))


def _begin(out: Path, plan: dict[str, Any]) -> None:
    """Make the folder; raise if it holds anything but the same pack, unfinished."""
    check_outside_runs(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if (out / MANIFEST).exists():
            raise TorchcapsError(f"{out} already holds a pack. Give another folder, or remove it.")
        if (out / PLAN).exists():
            stored = read_object(out / PLAN)
            changed = [name for name in plan if stored.get(name) != plan[name]]
            if changed:
                raise TorchcapsError(
                    f"{out} holds an unfinished pack with another {', '.join(changed)}. Remove it, "
                    "or give another folder."
                )
            return
        if any(out.iterdir()):
            raise TorchcapsError(f"{out} is not empty: give a new or empty folder.")
        _write_json(out / PLAN, plan)
    except OSError as error:
        raise TorchcapsError(f"{out}: cannot be written ({error.strerror}).") from None


def _write_shard(
    path: Path,
    records: Records,
    batches: Iterator[tuple[range, list[Packed | TorchcapsError]]],
    raw: bool,
    skip_broken: bool,
) -> dict[str, Any]:
    """Write a shard under a temporary name and rename it. -> facts about it"""
    import pyarrow as pa

    image = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    schema = pa.schema(
        {"image": image, "label": pa.int64(), "crc32": pa.uint32()},
        metadata={"huggingface": json.dumps({"info": {"features": _features(records, raw)}})},
    )
    temporary, broken = path.with_suffix(".tmp"), []
    sizes: set[Size] = set()
    kinds: set[str] = set()
    count = 0
    try:
        with temporary.open("wb") as file:
            with pa.ipc.new_stream(file, schema) as writer:
                for rows, encoded in batches:
                    broken += [str(e) for e in encoded if isinstance(e, TorchcapsError)]
                    if broken and not skip_broken:
                        break
                    good = [(n, e) for n, e in zip(rows, encoded, strict=True)
                            if isinstance(e, Packed)]  # fmt: skip
                    labels = [int(records.labels[n]) for n, _ in good]
                    images = [{"bytes": e.data, "path": records.title(n)} for n, e in good]
                    sums = [checksum(e.data, y) for (_, e), y in zip(good, labels, strict=True)]
                    columns = [images, [None if y < 0 else y for y in labels], sums]
                    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
                    writer.write_batch(pa.record_batch(arrays, schema=schema))
                    sizes |= {e.size for _, e in good}
                    kinds |= {e.kind for _, e in good}
                    count += len(good)
            file.flush()
            os.fsync(file.fileno())
        if broken and not skip_broken:
            more = f" And {len(broken) - MAX_NAMED} more." if len(broken) > MAX_NAMED else ""
            raise TorchcapsError(
                f"{len(broken)} broken images; skip_broken=true leaves them out. "
                f"{' '.join(broken[:MAX_NAMED])}{more}"
            )
        os.replace(temporary, path)
    except OSError as error:
        raise TorchcapsError(
            f"{path}: cannot be written ({error.strerror}). The same command continues."
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
    return {
        "file": path.name, "images": count, "bytes": path.stat().st_size,
        "sha256": sha256_file(path), "broken": len(broken),
        "sizes": sorted(map(list, sizes))[:2], "kinds": sorted(kinds),
    }  # fmt: skip


def _features(records: Records, raw: bool) -> dict[str, Any]:
    """The columns in the words of Hugging Face datasets."""

    def value(kind: str) -> dict[str, str]:
        return {"dtype": kind, "_type": "Value"}

    image = {"bytes": value("binary"), "path": value("string")} if raw else {"_type": "Image"}
    label = {"names": list(records.classes), "_type": "ClassLabel"}
    return {
        "image": image, "crc32": value("uint32"),
        "label": label if records.classes else value("int64"),
    }  # fmt: skip


def _finish(out: Path, plan: dict[str, Any], shards: list[dict[str, Any]]) -> dict[str, Any]:
    """Write the manifest, and remove what served an interrupted pack."""
    sizes = {tuple(size) for shard in shards for size in shard.pop("sizes")}
    kinds = {kind for shard in shards for kind in shard.pop("kinds")}
    if not sum(shard["images"] for shard in shards):
        raise TorchcapsError(f"{plan['source']}: it has no images that can be read.")
    manifest = {**plan, "shards": shards}
    manifest["size"] = list(next(iter(sizes))) if len(sizes) == 1 else None
    if plan["coding"] == "encoded" and len(sizes) == 1 and kinds in ({"color"}, {"gray"}):
        manifest |= {"coding": "jpeg", "mode": "RGB" if kinds == {"color"} else "L"}
    for name in ("images", "skip_broken"):
        del manifest[name]
    manifest["sum"] = _sum(manifest)
    _write_json(out / MANIFEST, manifest)
    for path in [out / PLAN, *(out / s["file"] for s in shards)]:
        path.with_suffix(".json").unlink(missing_ok=True)
    return manifest


def _sum(values: dict[str, Any]) -> str:
    return sha256(json.dumps(values, sort_keys=True).encode())


def _write_json(path: Path, values: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        file.write(json.dumps(values, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a pack, checked."""
    path = folder / MANIFEST
    if not path.exists():
        state = "an unfinished pack: run the same `torchcaps data pack` again"
        missing = f"no pack ({MANIFEST} is missing). Make one: torchcaps data pack SOURCE {folder}"
        raise TorchcapsError(f"{folder}: {state if (folder / PLAN).exists() else missing}.")
    manifest = read_object(path)
    if manifest.get("version") != VERSION:
        raise TorchcapsError(
            f"{path}: a pack of version {manifest.get('version')}; this torchcaps reads version "
            f"{VERSION}."
        )
    if manifest.pop("sum", None) != _sum(manifest):
        raise TorchcapsError(f"{path}: damaged (its sum has changed).")
    return manifest


def open_pack(folder: Path) -> tuple[ArrowRecords, dict[str, Any]]:
    """The records of a pack, memory-mapped, and its manifest."""
    pa = require("pyarrow", "packed")
    manifest = read_manifest(folder)
    batches: list[tuple[str, Any]] = []
    splits: dict[str, range] = {}
    for shard in manifest["shards"]:
        path = folder / shard["file"]
        if not path.is_file() or path.stat().st_size != shard["bytes"]:
            state = "cut off" if path.is_file() else "missing"
            raise TorchcapsError(f"{path} is {state}. Restore it, or pack the images again.")
        try:
            with pa.memory_map(str(path)) as source:
                found = pa.ipc.open_stream(source).read_all().to_batches()
            if sum(batch.num_rows for batch in found) != shard["images"]:
                raise ValueError("another number of images")
            if found and found[0].schema.names != ["image", "label", "crc32"]:
                raise ValueError("other columns")
            for batch in found:
                batch.validate()
        except (*UNREADABLE, pa.ArrowException) as error:
            raise TorchcapsError(f"{path} is damaged ({_line(error)}).") from None
        batches += [(str(path), batch) for batch in found]
        start = splits[shard["split"]].start if shard["split"] in splits else None
        end = shard["images"] + sum(len(rows) for rows in splits.values())
        splits[shard["split"]] = range(end - shard["images"] if start is None else start, end)
    classes = tuple(manifest["classes"])
    records = ArrowRecords(f"packed:{folder}", batches, classes, splits, _sum(manifest))
    return records, manifest


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def verify(folder: Path) -> list[str]:
    """Compare the sha256 of every shard with the manifest. -> the files"""
    files = []
    for shard in read_manifest(folder)["shards"]:
        path = folder / shard["file"]
        if not path.is_file() or sha256_file(path) != shard["sha256"]:
            raise TorchcapsError(
                f"{path} is missing or damaged: its sha256 has changed. Restore the file, or pack "
                "the images again."
            )
        files.append(str(path))
    return files
