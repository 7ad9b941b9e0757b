"""The one exception that is meant for a person: a line or two that say what to do."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any


class TorchcapsError(Exception):
    """Something the user can mend. The command line prints its text and exits with 1."""

    def __init__(self, text: str):
        super().__init__(text.rstrip())  # a hint at its end may be empty


class UsageError(TorchcapsError):
    """A word that stands for nothing here. The command line exits with 2, as for wrong usage."""


class TorchcapsWarning(UserWarning):
    """Something to look at that stops nothing. The command line prints its text as a line."""


class Interrupted(Exception):
    """A run was stopped after a step and a checkpoint; the text is its folder, which can be
    resumed. signal: the number of the signal that stopped it, 0 for a `stop` file
    """

    def __init__(self, text: str, signal: int = 0):
        super().__init__(text)
        self.signal = signal


def nearest(word: str, choices: list[str], most: int = 40) -> str:
    """'Did you mean …?' for a misspelt name, or the choices when nothing is near and there are not
    too many of them.
    """
    close = get_close_matches(word, choices, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {close[0]!r}?"
    few = 0 < len(choices) <= most
    return f"There are: {', '.join(sorted(choices))}." if few else ""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a disk error into a message that names the file or folder."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise TorchcapsError(f"{path}: cannot be written ({reason}).") from None


def some_of(names: Iterable[str], most: int = 10) -> str:
    """The first names, and how many more there are: 'a, b and 3 more'."""
    shown = list(names)
    more = f" and {len(shown) - most:,} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more


def require(package: str, extra: str) -> Any:
    """Import an optional package, or say which extra brings it."""
    try:
        return import_module(package)
    except (ImportError, RuntimeError):  # torchvision beside another torch raises the second
        raise TorchcapsError(
            f"This needs the packages of an extra: pip install 'torchcaps[{extra}]'."
        ) from None
