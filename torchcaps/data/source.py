"""Finding a data set's files under the root, checking them, and fetching what is missing."""

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch import Tensor

from torchcaps.errors import TorchcapsError


@dataclass(frozen=True)
class Remote:
    """A file that mirrors serve: its path under the root, its sha256, where to ask for it."""

    path: str
    sha256: str
    urls: tuple[str, ...]
    unpack_to: str = ""
    """Folder under the root that an archive is unpacked into; '' for a file used as it is."""


def default_root() -> Path:
    import platformdirs  # slow to import, and help texts need none of it

    return Path(platformdirs.user_cache_dir("torchcaps")) / "data"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parts(file: IO[bytes] | gzip.GzipFile, most: int) -> Iterator[bytes]:
    """At most so many bytes, in pieces: `read` takes memory for all that it is asked for."""
    while most > 0 and (part := file.read(min(most, 2**20))):
        most -= len(part)
        yield part


LARGEST = 2**30
"""Bytes that a file may have, unpacked, where its format promises no size."""


def read_bytes(
    path: Path,
    expected_sha256: str | None = None,
    largest: int = LARGEST,
    promised: Callable[[bytes], int] | None = None,
) -> bytes:
    """A file's content, unpacked when it is gzip, of at most so many bytes, or as many as its first
    64 bytes promise; the sha256 is that of the unpacked bytes.
    """
    try:
        if not path.is_file():
            raise OSError("no such file" if not path.exists() else "not a plain file")
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            content = gzip.GzipFile(fileobj=file) if packed else file
            data = content.read(64)
            most = min(largest, promised(data)) if promised else largest
            data = b"".join([data, *_parts(content, most + 1 - len(data))])
    except (OSError, EOFError, zlib.error) as error:
        raise TorchcapsError(
            f"{path}: cannot be read ({error}). Delete it and fetch it again."
        ) from None
    if len(data) > most:
        raise TorchcapsError(f"{path}: it holds more than the {most:,} bytes of such a file.")
    if expected_sha256 and sha256(data) != expected_sha256:
        raise TorchcapsError(
            f"{path}: its sha256 is not {expected_sha256}. Delete it and fetch it again."
        )
    return data


def check_labels(name: str, labels: Tensor, classes: int) -> None:
    """Say so where a label is no class."""
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise TorchcapsError(f"{name}: a label is not one of 0 to {classes - 1}.")


def read_npz(path: Path, largest: dict[str, int], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """Arrays of an npz file by name, each of at most so many bytes, and no other; pickled objects
    are refused.
    """
    try:
        if not path.is_file():
            raise OSError("no such file")
        with zipfile.ZipFile(path) as content:
            sizes = {i.filename.removesuffix(".npy"): i.file_size for i in content.infolist()}
            absent = [name for name in largest if name not in sizes and name not in optional]
            if absent:
                raise TorchcapsError(f"{path}: holds no {', '.join(absent)}.")
            arrays = {}
            for name, most in largest.items():
                if name not in sizes:
                    continue
                if sizes[name] > most + 4096:  # a header
                    raise TorchcapsError(f"{path}: {name} has more than {most:,} bytes.")
                with content.open(f"{name}.npy") as file:
                    arrays[name] = np.load(io.BytesIO(file.read(most + 4096)), allow_pickle=False)
    except TorchcapsError:
        raise
    except Exception as error:  # numpy, zipfile and zlib raise many kinds for a broken file
        kind = type(error).__name__
        raise TorchcapsError(f"{path}: not a readable npz file ({kind}: {error}).") from None
    return arrays


def find(root: Path, *candidates: str) -> Path | None:
    """The first candidate that exists under the root, plain or with .gz."""
    for candidate in candidates:
        for path in (root / candidate, root / f"{candidate}.gz"):
            if path.exists():
                return path
    return None


def missing(name: str, root: Path, remotes: tuple[Remote, ...], why: str = "") -> TorchcapsError:
    """The error that tells a person on a machine without network what to put where."""
    lines = [f"{name} is not under {root}{f' and could not be fetched ({why})' if why else ''}."]
    lines += [f"  put {root / r.path}  sha256 {r.sha256}" for r in remotes]
    return TorchcapsError("\n".join(lines))


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar or zip beside its target, then move it there in one rename."""
    if folder.exists():
        return
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as z:
                z.extractall(temporary)
        else:
            with tarfile.open(archive) as t:
                t.extractall(temporary, filter="data")
        inner = list(temporary.iterdir())
        # an archive that holds one folder of the wanted name: that folder is the data set
        wanted = inner[0] if len(inner) == 1 and inner[0].is_dir() else temporary
        os.replace(wanted, folder)
    except Exception as error:  # a broken archive makes zipfile, tarfile and zlib raise many kinds
        kind = type(error).__name__
        raise TorchcapsError(f"{archive}: cannot be unpacked ({kind}: {error}).") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
