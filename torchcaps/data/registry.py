"""Data sets by name: `load("mnist")`, `load("rotated:digits,degrees=30")`."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from torchcaps.data.dataset import Dataset
from torchcaps.data.source import Remote, default_root, sha256_file
from torchcaps.data.spec import call, parse
from torchcaps.errors import TorchcapsError, UsageError
from torchcaps.registry import Registry


@dataclass(frozen=True)
class Entry:
    name: str
    summary: str
    load: Callable[..., Dataset]
    remotes: tuple[Remote, ...]
    revision: int = 1
    """Raised when a change of the code changes the images that this name stands for."""
    verify: Callable[[str], list[str]] | None = None
    """For sets with checksums of their own: compares them. argument -> the verified files"""

    @property
    def base(self) -> bool:
        """True if its argument is another data set, which it draws its images from."""
        return "base" in inspect.signature(self.load).parameters


DATASETS = Registry[Entry]("data set", "data")


def register(
    name: str,
    summary: str,
    remotes: tuple[Remote, ...] = (),
    revision: int = 1,
    verify: Callable[[str], list[str]] | None = None,
):
    """Put a loader `(root, [argument], *, seed, …) -> Dataset` under a name."""

    def add(function: Callable[..., Dataset]) -> Callable[..., Dataset]:
        DATASETS[name] = Entry(name, summary, function, remotes, revision, verify)
        return function

    return add


def entries() -> list[Entry]:
    """All data sets that are known by a name.

    >>> [entry.name for entry in entries()][:2]
    ['affnist', 'affnist-like']
    """
    return [DATASETS[name] for name in sorted(DATASETS)]


def entry(text: str) -> Entry:
    name, argument, _ = parse(text)
    if name not in DATASETS and argument is None and Path(name).expanduser().is_dir():
        raise UsageError(f"Unknown data set {name!r}. For this folder of images: folder:{text}.")
    return DATASETS.find(name)


def check(name: str, root: str | Path | None = None) -> list[str]:
    """Compare the files under the root with their checksums. -> the verified files"""
    if verify := entry(name).verify:
        return verify(parse(name)[1] or "")
    folder = Path(root).expanduser() if root else default_root()
    remotes = [remote for remote in entry(name).remotes if (folder / remote.path).exists()]
    for remote in remotes:
        if sha256_file(folder / remote.path) != remote.sha256:
            raise TorchcapsError(
                f"{folder / remote.path}: its sha256 is not {remote.sha256}; it may be another "
                "packing of the same data, or damaged."
            )
    return [remote.path for remote in remotes]


_LOADED: ContextVar[dict[tuple[str, Path, int], Dataset] | None] = ContextVar(
    "loaded", default=None
)


@contextmanager
def shared_loads(memory: tuple[Dataset, int] | None = None) -> Iterator[None]:
    """Read a data set once that is loaded twice inside, or that several others are made from.

    memory: the data set that the name `memory` stands for, and the seed that it is loaded with
    """
    held = _LOADED.get()
    held = {} if held is None else held
    if memory is not None:
        held = {**held, ("memory", default_root(), memory[1]): memory[0]}
    token = _LOADED.set(held)
    try:
        yield
    finally:
        _LOADED.reset(token)


def load(name: str, root: str | Path | None = None, *, seed: int = 0) -> Dataset:
    """A data set by name, with options after commas: `rotated:digits,degrees=30`.

    `seed` decides the held-out validation images and, in generated sets, the random transforms.
    Test images that are held out are the same for every seed.

    >>> load("rotated:digits,degrees=30").num_classes
    10
    """
    folder = Path(root).expanduser() if root else default_root()
    loaded, key = _LOADED.get(), (name, folder, seed)
    if loaded is not None and key in loaded:
        return loaded[key]
    data = call(entry(name).load, name, folder, seed=seed)
    if loaded is not None:
        loaded[key] = data
    return data
