"""Fetching what is missing: pooch checks, mirrors are tried in turn, a broken download goes on."""

import shutil
from pathlib import Path

from torchcaps.data.source import Remote, missing, sha256_file, unpack
from torchcaps.errors import TorchcapsError


def fetch(name: str, root: Path, remotes: tuple[Remote, ...]) -> None:
    """Bring every file of a data set under the root and unpack the archives."""
    if not remotes:
        raise missing(name, root, remotes, "nobody serves it any more")
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
    """A downloader for pooch that keeps what has arrived in `part` and asks only for the rest."""

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

        have = self.part.stat().st_size if self.part.exists() else 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        with requests.get(url, headers=headers, stream=True, timeout=self.timeout) as response:
            whole = response.status_code == 416  # nothing after `have`: it is all here
            if not whole:
                response.raise_for_status()
            if response.status_code == 200:
                have = 0
            total = have + int(response.headers.get("content-length", 0))
            columns = (
                TextColumn(self.part.stem),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
            )
            with Progress(*columns) as progress, self.part.open("ab" if have else "wb") as file:
                task = progress.add_task("", total=total, completed=have)
                for chunk in () if whole else response.iter_content(1 << 16):
                    file.write(chunk)
                    progress.advance(task, len(chunk))
        if not whole and total and self.part.stat().st_size < total:
            raise OSError(f"{url} broke off; call again to go on")
        shutil.move(self.part, output_file)
