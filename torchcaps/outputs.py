"""Output paths: no command overwrites a file, or writes into a run, without being asked to.

Commands check their output before the work. Only files that a command keeps in a run's folder
under names of its own (report.html and figures/) are replaced without `--force`.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from torchcaps.errors import TorchcapsError

MANIFEST = "unfinished.json"
"""The file that marks the output folder of a command until the command is finished."""
RUN_FILES = ("start.json", "record.json", "checkpoints", "model")
"""Files of a run beside its recipe.json."""
_FORCE = "add --force (in Python: force=True)"


def run_around(path: Path) -> Path | None:
    """The run whose folder this path is or lies in."""
    place = Path(os.path.abspath(path.expanduser()))
    for folder in (place, *place.parents, *place.resolve().parents):
        if is_run(folder):
            return folder
    return None


def is_run(folder: Path) -> bool:
    return (folder / "recipe.json").is_file() and any((folder / n).exists() for n in RUN_FILES)


def check_file(path: str | Path, *, force: bool = False) -> Path:
    """Raise unless a file may be written here: it is new, and outside of every run."""
    path = Path(path)
    if path.is_dir():
        raise TorchcapsError(f"{path} is a folder. Give the name of a file.")
    _check_place(path, force)
    special = path.exists() and not path.is_file()  # such as /dev/stdout
    if os.path.lexists(path) and not special and not force:
        raise TorchcapsError(
            f"{path} already exists. Choose another name, or to replace it {_FORCE}."
        )
    return path


def check_folder(path: str | Path, *, command: str = "", force: bool = False) -> Path:
    """Raise unless a folder may be filled here: it is new or empty, and outside of every run.

    command: one that continues a folder which it has begun, see `unfinished`
    """
    path = Path(path)
    if os.path.lexists(path) and not path.is_dir():
        raise TorchcapsError(f"{path} is not a folder. Choose another name.")
    _check_place(path, force)
    filled = path.is_dir() and any(path.iterdir())
    if filled and not force and not (command and begun_by(path) == command):
        raise TorchcapsError(
            f"{path} already exists and is not empty. Choose a new folder, or to replace files "
            f"in it {_FORCE}."
        )
    return path


def check_outside_runs(folder: Path) -> None:
    """Raise if a folder is a run or lies in one, for commands without `--force`."""
    if (run := run_around(folder)) is not None:
        raise TorchcapsError(f"{folder} lies in the run {run}. Choose a folder outside of it.")


def _check_place(path: Path, force: bool) -> None:
    run = run_around(path)
    if run is not None and not force:
        raise TorchcapsError(
            f"{path} lies in the run {run}. Choose a name outside of it, or {_FORCE}."
        )
    parent = path.absolute().parent
    while not os.path.lexists(parent):
        parent = parent.parent
    if not parent.is_dir():
        raise TorchcapsError(f"{path} cannot be written: {parent} is not a folder.")
    if not os.access(parent, os.W_OK):
        raise TorchcapsError(f"{path} cannot be written: no permission to write in {parent}.")


def begun_by(folder: Path) -> str:
    """The command that has begun to fill a folder and is not finished; empty if there is none."""
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return ""
    command = content.get("command", "") if isinstance(content, dict) else ""
    return command if isinstance(command, str) else ""


@contextmanager
def unfinished(folder: Path, command: str) -> Iterator[None]:
    """Mark a folder as one that a command fills, until it ends well."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).write_text(json.dumps({"command": command}) + "\n", encoding="utf-8")
    yield
    (folder / MANIFEST).unlink()


@contextmanager
def scratch_folder(beside: Path) -> Iterator[Path]:
    """A new folder beside an output, on the same disk, which is removed at the end."""
    parent = beside.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{beside.name}.", dir=parent) as folder:
        yield Path(folder)
