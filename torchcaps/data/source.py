"""Finding a data set's files under the root, checking them, and fetching what is missing."""

import gzip
import hashlib
import os
import shutil
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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


def read_bytes(path: Path, expected_sha256: str | None = None) -> bytes:
    """A file's content, unpacked when it is gzip; the sha256 is that of the unpacked bytes."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise TorchcapsError(
            f"{path}: cannot be read ({error}). Delete it and fetch it again."
        ) from None
    if expected_sha256 and sha256(data) != expected_sha256:
        raise TorchcapsError(
            f"{path}: its sha256 is not {expected_sha256}. Delete it and fetch it again."
        )
    return data


def read_npz(path: Path, required: tuple[str, ...]) -> dict[str, np.ndarray]:
    """The arrays of an npz file; pickled objects in it are refused."""
    try:
        with path.open("rb") as file:  # ours to close: numpy forgets it when a file is broken
            content = np.load(file, allow_pickle=False)
            arrays = {name: content[name] for name in content.files}
    except Exception as error:  # numpy, zipfile and zlib raise many kinds for a broken file
        kind = type(error).__name__
        raise TorchcapsError(f"{path}: not a readable npz file ({kind}: {error}).") from None
    if absent := [name for name in required if name not in arrays]:
        raise TorchcapsError(f"{path}: holds no {', '.join(absent)}.")
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
    except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise TorchcapsError(f"{archive}: cannot be unpacked ({error}).") from None
    inner = list(temporary.iterdir())
    # an archive that holds one folder of the wanted name: that folder is the data set
    wanted = inner[0] if len(inner) == 1 and inner[0].is_dir() else temporary
    os.replace(wanted, folder)
    shutil.rmtree(temporary, ignore_errors=True)
