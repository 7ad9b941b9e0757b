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
from torchcaps.errors import Misused, TorchcapsError, nearest


@dataclass(frozen=True)
class Entry:
    name: str
    summary: str
    load: Callable[..., Dataset]
    remotes: tuple[Remote, ...]
    revision: int = 1
    """Raised when a change of the code changes the images that this name stands for."""

    @property
    def base(self) -> bool:
        """Whether its argument is another data set, which it draws its images from."""
        return "base" in inspect.signature(self.load).parameters


_ENTRIES: dict[str, Entry] = {}


def register(name: str, summary: str, remotes: tuple[Remote, ...] = (), revision: int = 1):
    """Put a loader `(root, [argument], *, seed, …) -> Dataset` under a name."""

    def add(function: Callable[..., Dataset]) -> Callable[..., Dataset]:
        _ENTRIES[name] = Entry(name, summary, function, remotes, revision)
        return function

    return add


def entries() -> list[Entry]:
    return [_ENTRIES[name] for name in sorted(_ENTRIES)]


def entry(text: str) -> Entry:
    name = parse(text)[0]
    if name not in _ENTRIES:
        raise Misused(f"There is no data set {name!r}. {nearest(name, list(_ENTRIES))}")
    return _ENTRIES[name]


def check(name: str, root: str | Path | None = None) -> list[str]:
    """Compare the files under the root with the known checksums -> those found good."""
    folder = Path(root).expanduser() if root else default_root()
    found = [remote for remote in entry(name).remotes if (folder / remote.path).exists()]
    for remote in found:
        if sha256_file(folder / remote.path) != remote.sha256:
            raise TorchcapsError(
                f"{folder / remote.path}: its sha256 is not {remote.sha256}; it may be another "
                "packing of the same data, or damaged."
            )
    return [remote.path for remote in found]


_LOADED: ContextVar[dict[tuple[str, Path, int], Dataset] | None] = ContextVar(
    "loaded", default=None
)


@contextmanager
def shared_loads(given: tuple[Dataset, int] | None = None) -> Iterator[None]:
    """In it a set that is asked for twice, or that several others are drawn from, is read once.

    given: what the name `given` stands for in it, and the seed that it is asked for with
    """
    held = _LOADED.get()
    held = {} if held is None else held
    if given is not None:
        held = {**held, ("given", default_root(), given[1]): given[0]}
    token = _LOADED.set(held)
    try:
        yield
    finally:
        _LOADED.reset(token)


def load(name: str, root: str | Path | None = None, *, seed: int = 0) -> Dataset:
    """A data set by name, with options after commas: `rotated:digits,degrees=30`.

    `seed` decides the held-out validation images and, in generated sets, what is drawn.
    """
    folder = Path(root).expanduser() if root else default_root()
    loaded, key = _LOADED.get(), (name, folder, seed)
    if loaded is not None and key in loaded:
        return loaded[key]
    data = call(entry(name).load, name, folder, seed=seed)
    if loaded is not None:
        loaded[key] = data
    return data
