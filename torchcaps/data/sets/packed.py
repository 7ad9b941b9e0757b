"""Packs and Hugging Face data sets, of any size: `packed:OUT[,size=64]`, `hf:USER/SET`.

What fits in memory is read once; the rest stays on disk and is decoded by threads. Both give the
same batches, bit for bit.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchcaps.data.dataset import Dataset, Split
from torchcaps.data.images import Size, as_size, values_of
from torchcaps.data.pack import MANIFEST, Progress, open_pack, pack, read_manifest, verify
from torchcaps.data.records import SPLITS, ArrowRecords, FileRecords, Records, TarRecords
from torchcaps.data.registry import register
from torchcaps.data.sets.folder import file_records, list_files, split_up
from torchcaps.data.spec import call, parse
from torchcaps.data.stream import Decoder, images_of
from torchcaps.data.value_range import Range, as_range, default_range
from torchcaps.errors import TorchcapsError, require

DEFAULT_SIZE = "64"


def dataset_of(
    records: Records, decoder: Decoder, *, seed: int, in_memory: str, note: str = ""
) -> Dataset:
    """A data set of records, in their splits or in new ones."""
    images, storage = images_of(records, decoder, in_memory)
    data = Split(images, records.labels)
    splits = {name: data[rows.start : rows.stop] for name, rows in records.splits.items()}
    dataset = split_up(records.name, Path(records.name), splits, records.classes, seed, note)
    return replace(
        dataset,
        files=records.identity,
        storage=storage,
        value_range=decoder.value_range,
        unsplit=set(records.splits) == {""},
    )


def pack_decoder(folder: Path, manifest: dict[str, Any], size: str, mode: str) -> Decoder:
    """The decoder of a pack for a size and mode; empty: those of the pack."""
    own: Size | None = tuple(manifest["size"]) if manifest["size"] else None
    if not size and own is None:
        raise TorchcapsError(
            f"packed:{folder} has images of several sizes: add a size, packed:{folder},size=64."
        )
    sides, wanted = (as_size(size) if size else own), mode or manifest["mode"] or "RGB"
    assert sides is not None
    same = sides == own and wanted == manifest["mode"]
    if manifest["coding"] == "raw" and not same:
        raise TorchcapsError(
            f"packed:{folder} holds raw pixels of {own[0]}x{own[1]}, "
            f"{manifest['mode']}: size= and mode= cannot change them."
            if own else f"packed:{folder}: damaged."
        )  # fmt: skip
    value_range = tuple(manifest["value_range"]) if manifest["value_range"] else None
    return Decoder(sides, wanted, manifest["coding"] if same else "encoded", value_range)


@register(
    "packed",
    "a pack that torchcaps data pack wrote: packed:PATH[,size=64][,mode=RGB|L][,in_memory=false]",
    verify=lambda path: verify(Path(path).expanduser()),
)
def packed(
    root: Path, path: str, *, seed: int, size: str = "", mode: str = "", in_memory: str = "auto"
) -> Dataset:
    """The splits of the packed source. size: default: the one size of the pack's images."""
    del root
    folder = Path(path).expanduser()
    records, manifest = open_pack(folder)
    decoder = pack_decoder(folder, manifest, size, _mode(mode))
    broken = sum(shard["broken"] for shard in manifest["shards"])
    note = f"{broken} broken images are left out" if broken else ""
    return dataset_of(records, decoder, seed=seed, in_memory=in_memory, note=note)


def _mode(mode: str) -> str:
    if mode not in ("", "L", "RGB"):
        raise TorchcapsError(f"mode={mode!r}: give L (gray) or RGB.")
    return mode


@register(
    "hf",
    "a data set of the Hugging Face hub: hf:USER/SET[,size=64][,mode=RGB|L][,image=COLUMN]"
    "[,label=COLUMN][,config=NAME][,in_memory=false]",
)
def hf(
    root: Path,
    path: str,
    *,
    seed: int,
    size: str = DEFAULT_SIZE,
    mode: str = "RGB",
    image: str = "",
    label: str = "",
    config: str = "",
    in_memory: str = "auto",
) -> Dataset:
    """A data set of the hub, or a local one: a folder of save_to_disk or of Parquet files."""
    del root
    records = hf_records(path, image=image, label=label, config=config)
    decoder = Decoder(as_size(size), _mode(mode) or "RGB")
    return dataset_of(records, decoder, seed=seed, in_memory=in_memory)


def hf_records(path: str, *, image: str = "", label: str = "", config: str = "") -> ArrowRecords:
    """The image column of a Hugging Face data set, from the buffers of its Arrow files."""
    datasets = require("datasets", "datasets")
    local = Path(path).expanduser()
    datasets.disable_progress_bars()
    try:
        if (local / "dataset_dict.json").exists() or (local / "state.json").exists():
            loaded = datasets.load_from_disk(str(local))
        else:
            loaded = datasets.load_dataset(str(local) if local.exists() else path, config or None)
    except Exception as error:  # the libraries below raise many kinds
        reason = " ".join(str(error).split())[:300]
        raise TorchcapsError(f"hf:{path} cannot be loaded ({reason}).") from None
    parts = dict(loaded) if hasattr(loaded, "keys") else {"train": loaded}
    splits: dict[str, range] = {}
    batches: list[tuple[str, Any]] = []
    for name in ("train", "val", "test"):
        for source, part in parts.items():
            if SPLITS.get(source) != name:
                continue
            if part._indices is not None:  # selected or shuffled rows
                part = part.flatten_indices()
            found_batches = part.data.table.to_batches()
            start = sum(len(rows) for rows in splits.values())
            splits[name] = range(start, start + sum(b.num_rows for b in found_batches))
            batches += [(f"hf:{path}, {source}", batch) for batch in found_batches]
    if "train" not in splits:
        raise TorchcapsError(f"hf:{path} has the splits {', '.join(parts)}, but not train.")
    features = next(part for name, part in parts.items() if SPLITS.get(name) == "train").features
    image = image or _column(path, features, ("Image",), "image")
    label = label or _column(path, features, ("ClassLabel",), "label")
    missing = [name for name in (image, label) if name and name not in features]
    if missing:
        raise TorchcapsError(
            f"hf:{path} has no column {missing[0]!r}. Its columns: {', '.join(features)}."
        )
    names = tuple(getattr(features[label], "names", None) or ()) if label else ()
    fingerprint = "".join(part._fingerprint for part in parts.values())
    records = ArrowRecords(f"hf:{path}", batches, names, splits, fingerprint, image, label)
    if not names and len(records) and int(records.labels.max()) >= 0:
        records.classes = tuple(str(n) for n in range(int(records.labels.max()) + 1))
    return records


def _column(path: str, features: Any, kinds: tuple[str, ...], what: str) -> str:
    """The one column of a kind; "" for a label that is not there."""
    columns = [name for name, feature in features.items() if type(feature).__name__ in kinds]
    if not columns and what == "label":
        return next((n for n in ("label", "labels", "fine_label") if n in features), "")
    if len(columns) != 1:
        raise TorchcapsError(
            f"hf:{path} has the columns {', '.join(features)}: name the {what}, {what}=COLUMN."
        )
    return columns[0]


def _folder_records(
    path: str, labels: str = "", others: str = "refuse", follow_links: bool = False
) -> Records:
    folder = Path(path).expanduser()
    if (folder / MANIFEST).exists():
        return open_pack(folder)[0]
    if archives := sorted(folder.glob("*.tar")) if folder.is_dir() else ():
        return TarRecords(f"webdataset:{path}", archives)
    files, classes, _ = list_files(folder, labels, others, follow_links)
    return file_records(f"folder:{path}", folder, files, classes)


def _tar_records(path: str) -> Records:
    given = Path(path).expanduser()
    archives = sorted(given.glob("*.tar")) if given.is_dir() else [given]
    if not archives or not archives[0].is_file():
        raise TorchcapsError(f"webdataset:{path}: no .tar file there.")
    return TarRecords(f"webdataset:{path}", archives)


def _pack_records(path: str) -> Records:
    return open_pack(Path(path).expanduser())[0]


SOURCES: dict[str, Callable[..., Records]] = {
    "folder": _folder_records,
    "packed": _pack_records,
    "hf": hf_records,
    "webdataset": _tar_records,
}


def open_records(text: str) -> Records:
    """Encoded images by number: folder:, packed:, hf:, webdataset:PATH, or a path alone."""
    if parse(text)[0] not in SOURCES:
        path = Path(text).expanduser()
        if not path.exists():
            kinds = ", ".join(f"{name}:" for name in SOURCES)
            raise TorchcapsError(f"{text}: no such folder, and it does not start with {kinds}.")
        return _folder_records(text) if path.is_dir() else _tar_records(text)
    return call(SOURCES[parse(text)[0]], text)


def decoder_of(records: Records, size: Size, mode: str, value_range: Range | None) -> Decoder:
    """The decoder of records for images of a size, which a model takes."""
    if records.name.startswith("packed:"):
        folder = Path(records.name.partition(":")[2])
        decoder = pack_decoder(folder, read_manifest(folder), "x".join(map(str, size)), mode)
        decoder.value_range = value_range or decoder.value_range
        return decoder
    return Decoder(size, mode, value_range=value_range or value_range_of(records))


PACK_OPTIONS = ("size", "mode", "coding", "quality", "range", "skip_broken")


def pack_source(text: str, out: str | Path, progress: Progress = lambda count: None) -> Any:
    """Write a pack of a source, with options of the pack among those of the source. -> manifest

    pack_source("folder:photos,size=256", "photos-256")
    """
    name, argument, options = parse(text)
    own = "".join(f",{key}={options.pop(key)}" for key in PACK_OPTIONS if key in options)
    rest = "".join(f",{key}={value}" for key, value in options.items())
    source = name + (f":{argument}" if argument is not None else "") + rest

    def options_of(
        *, size: str = "", mode: str = "RGB", coding: str = "", quality: int = 90,
        range: str = "", skip_broken: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        if coding not in ("", "jpeg", "raw"):
            raise TorchcapsError(f"coding={coding}: give jpeg or raw.")
        if coding and not size:
            raise TorchcapsError(f"coding={coding} needs one size for all images: add size=.")
        if not 1 <= quality <= 100:
            raise TorchcapsError(f"quality={quality}: give 1 to 100.")
        return {
            "size": as_size(size) if size else None, "mode": _mode(mode), "quality": quality,
            "coding": coding or "jpeg", "skip_broken": skip_broken,
            "value_range": as_range(range) if range else None,
        }  # fmt: skip

    chosen = call(options_of, f"pack{own}")
    records = open_records(source)
    chosen["value_range"] = chosen["value_range"] or value_range_of(records)
    return pack(records, Path(out), progress=progress, **chosen)


def value_range_of(records: Records) -> Range | None:
    """The range that follows from training files with more than 8 bits, as for a folder."""
    if not isinstance(records, FileRecords):
        return None
    rows = records.splits.get("", records.splits.get("train", range(0)))
    values = values_of(records.paths[rows.start : rows.stop])
    return default_range(values, str(records.folder)) if values else None
