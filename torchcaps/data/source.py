"""Find a data set's files under the root, check them, and download missing files."""

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
    """A file to download: its path under the root, its sha256, its URLs."""

    path: str
    sha256: str
    urls: tuple[str, ...]
    unpack_to: str = ""
    """Folder under the root for the contents of an archive; '' for a single file."""


def default_root() -> Path:
    import platformdirs  # slow to import, and not needed for help texts

    return Path(platformdirs.user_cache_dir("torchcaps")) / "data"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _chunks(file: IO[bytes] | gzip.GzipFile, limit: int) -> Iterator[bytes]:
    """At most `limit` bytes in chunks, because `read(n)` allocates n bytes at once."""
    while limit > 0 and (chunk := file.read(min(limit, 2**20))):
        limit -= len(chunk)
        yield chunk


LARGEST = 2**30
"""Largest unpacked file, in bytes, if its header has no size."""


def read_bytes(
    path: Path,
    expected_sha256: str | None = None,
    largest: int = LARGEST,
    promised: Callable[[bytes], int] | None = None,
) -> bytes:
    """Read a file, and unpack it if it is gzip.

    expected_sha256: of the unpacked bytes. largest: limit in bytes. promised: size of the file
    according to its first 64 bytes, a further limit.
    """
    try:
        if not path.is_file():
            raise OSError("no such file" if not path.exists() else "not a plain file")
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            content = gzip.GzipFile(fileobj=file) if packed else file
            data = content.read(64)
            limit = min(largest, promised(data)) if promised else largest
            data = b"".join([data, *_chunks(content, limit + 1 - len(data))])
    except (OSError, EOFError, zlib.error) as error:
        raise TorchcapsError(
            f"{path}: cannot be read ({error}). Delete it and download it again."
        ) from None
    if len(data) > limit:
        raise TorchcapsError(f"{path}: the file has more than the {limit:,} bytes of its format.")
    if expected_sha256 and sha256(data) != expected_sha256:
        raise TorchcapsError(
            f"{path}: its sha256 is not {expected_sha256}. Delete it and download it again."
        )
    return data


def check_labels(name: str, labels: Tensor, classes: int) -> None:
    """Raise if a label is not a class number."""
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise TorchcapsError(f"{name}: a label is not one of 0 to {classes - 1}.")


def read_npz(path: Path, largest: dict[str, int], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """Read the arrays in `largest` (name -> limit in bytes) from an npz file, never unpickle."""
    try:
        if not path.is_file():
            raise OSError("no such file")
        with zipfile.ZipFile(path) as content:
            sizes = {i.filename.removesuffix(".npy"): i.file_size for i in content.infolist()}
            absent = [name for name in largest if name not in sizes and name not in optional]
            if absent:
                raise TorchcapsError(f"{path}: {', '.join(absent)} missing in the file.")
            arrays = {}
            for name, limit in largest.items():
                if name not in sizes:
                    continue
                if sizes[name] > limit + 4096:  # with a header
                    raise TorchcapsError(f"{path}: {name} has more than {limit:,} bytes.")
                with content.open(f"{name}.npy") as file:
                    arrays[name] = np.load(io.BytesIO(file.read(limit + 4096)), allow_pickle=False)
    except TorchcapsError:
        raise
    except (
        Exception
    ) as error:  # numpy, zipfile and zlib raise various exceptions for a damaged file
        kind = type(error).__name__
        raise TorchcapsError(f"{path}: not a readable npz file ({kind}: {error}).") from None
    return arrays


def find(root: Path, *candidates: str) -> Path | None:
    """First candidate that exists under the root, with or without .gz."""
    for candidate in candidates:
        for path in (root / candidate, root / f"{candidate}.gz"):
            if path.exists():
                return path
    return None


def missing(name: str, root: Path, remotes: tuple[Remote, ...], why: str = "") -> TorchcapsError:
    """Error that lists the files to copy to a machine without network."""
    reason = f" and could not be downloaded ({why})" if why else ""
    lines = [f"{name} is not under {root}{reason}."]
    lines += [f"  put {root / r.path}  sha256 {r.sha256}" for r in remotes]
    return TorchcapsError("\n".join(lines))


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar or zip to a temporary folder, then rename it."""
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
        # if the archive holds a single folder, this folder is the data set
        content = inner[0] if len(inner) == 1 and inner[0].is_dir() else temporary
        os.replace(content, folder)
    except Exception as error:  # zipfile, tarfile and zlib raise various exceptions
        kind = type(error).__name__
        raise TorchcapsError(f"{archive}: cannot be unpacked ({kind}: {error}).") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def fetch(name: str, root: Path, remotes: tuple[Remote, ...]) -> None:
    """Download every file of a data set and unpack the archives."""
    if not remotes:
        raise missing(name, root, remotes, "no server has it any more")
    for remote in remotes:
        target = root / remote.path
        if remote.unpack_to and (root / remote.unpack_to).exists():
            continue
        if not target.exists() or sha256_file(target) != remote.sha256:
            _download(name, root, remotes, remote)
        if remote.unpack_to:
            unpack(target, root / remote.unpack_to)


def _download(name: str, root: Path, remotes: tuple[Remote, ...], remote: Remote) -> None:
    import pooch  # with requests, half a second to import

    target = root / remote.path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TorchcapsError(f"{root}: cannot be written ({error}).") from None
    pooch.get_logger().setLevel("ERROR")
    reasons = []
    for url in remote.urls:
        try:
            pooch.retrieve(
                url,
                known_hash=f"sha256:{remote.sha256}",
                fname=target.name,
                path=target.parent,
                downloader=Resumable(target.with_name(target.name + ".part")),  # pyright: ignore
            )
            return
        except (OSError, ValueError) as error:
            reasons.append(
                f"{url}: {error if isinstance(error, ValueError) else type(error).__name__}"
            )
    raise missing(name, root, remotes, "; ".join(reasons))


class Resumable:
    """Downloader for pooch that keeps received bytes in `part` and requests only the rest."""

    def __init__(self, part: Path, timeout: float = 30):
        self.part = part
        self.timeout = timeout

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        import requests
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        from torchcaps.escape import Console

        size = self.part.stat().st_size if self.part.exists() else 0
        headers = {"Range": f"bytes={size}-"} if size else {}
        with requests.get(url, headers=headers, stream=True, timeout=self.timeout) as response:
            complete = response.status_code == 416  # the server has no bytes after `size`
            if not complete:
                response.raise_for_status()
            if response.status_code == 200:
                size = 0
            total = size + int(response.headers.get("content-length", 0))
            columns = (
                TextColumn(self.part.stem, markup=False),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
            )
            with (
                Progress(*columns, console=Console()) as progress,
                self.part.open("ab" if size else "wb") as file,
            ):
                task = progress.add_task("", total=total, completed=size)
                for chunk in () if complete else response.iter_content(1 << 16):
                    file.write(chunk)
                    progress.advance(task, len(chunk))
        if not complete and total and self.part.stat().st_size < total:
            raise OSError(f"{url}: the connection broke; run again to resume")
        shutil.move(self.part, output_file)
