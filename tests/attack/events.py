"""A run that is killed at one file event after the other: python -m tests.attack.events FOLDER
SHARE prints as JSON what came of it; SHARE of 1 is every event, 10 every tenth.

An event is a write, fsync, rename, truncate, unlink, mkdir, rmdir or the opening of a file to be
written. A kill falls before it; into a write also in its middle, with half of the bytes there.
"""

import builtins
import io
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import safetensors.torch
import torch

from tests.attack.forks import Child, outcome, use_few_digits
from tests.conftest import TINY_CAPSNET
from torchcaps.cli.train import show_record
from torchcaps.models import hub
from torchcaps.models.registry import model_config
from torchcaps.training.loop import resume, start
from torchcaps.training.recipe import DataSpec, Recipe

CALLS = (
    "fsync",
    "replace",
    "rename",
    "truncate",
    "ftruncate",
    "unlink",
    "remove",
    "mkdir",
    "rmdir",
)
WRITES = os.O_WRONLY | os.O_RDWR


class Events:
    """Counts the file events of this process, and ends it at one of them."""

    def __init__(self, at: int | None):
        self.at, self.names = at, []
        for name in CALLS:
            self._wrap(name)
        self._open, self._os_open = builtins.open, os.open
        builtins.open = io.open = self.open  # pathlib and safetensors' callers go through these
        os.open = self.os_open
        self._save_file, hub.save_file = hub.save_file, self.save_file  # written without Python

    def event(self, name: str, half=None) -> None:
        """One event, of which a write has two: before it, and in its middle."""
        for step in (None, half) if half else (None,):
            if self.at is not None and len(self.names) == self.at:
                if step:
                    step()
                os.kill(os.getpid(), signal.SIGKILL)
            self.names.append(f"half of {name}" if step else name)

    def _wrap(self, name: str) -> None:
        original = getattr(os, name)

        def counted(*arguments, **options):
            self.event(f"{name} {arguments[0]}")
            return original(*arguments, **options)

        setattr(os, name, counted)

    def os_open(self, path, flags, *more, **options):
        if flags & WRITES:
            self.event(f"open {path}")
        return self._os_open(path, flags, *more, **options)

    def save_file(self, tensors, path, metadata=None):
        def half():
            content = safetensors.torch.save(tensors, metadata)
            with self._open(path, "wb") as file:
                file.write(content[: len(content) // 2])

        self.event(f"write {path}", half)
        self._save_file(tensors, path, metadata)

    def open(self, path, mode="r", *more, **options):
        if not any(letter in mode for letter in "wax+") or isinstance(path, int):
            return self._open(path, mode, *more, **options)
        self.event(f"open {path}")
        file = self._open(path, mode, *more, **options)
        return Written(file, self, str(path))


class Written:
    """A file that is written to, event by event."""

    def __init__(self, file, events: Events, name: str):
        self._file, self._events, self._name = file, events, name

    def write(self, content):
        def half():
            self._file.write(content[: len(content) // 2])
            self._file.flush()

        self._events.event(f"write {self._name}", half)
        written = self._file.write(content)
        self._file.flush()  # here, so that the disk has it before the next event
        return written

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        return self._file.__exit__(*raised)


def recipe() -> Recipe:
    """Four steps, a checkpoint after each, two looks at validation, the results recorded."""
    torch.manual_seed(0)
    return Recipe(
        name="tiny", steps=4, validate_every=2, batch_size=50, data=DataSpec(name="digits"),
        model=model_config("capsnet", **TINY_CAPSNET), checkpoint_seconds=0.0, record=True,
    )  # fmt: skip


class Killed:
    """A run in a folder that is killed and goes on until it ends."""

    def __init__(self, folder: Path):
        self.folder = folder

    def go(self, at: int | None = None) -> Child:
        """Begin, or go on, and be killed at an event."""

        def work():
            events = Events(at)
            begun = Path("run/recipe.json").exists()
            run = resume("run") if begun else start(recipe(), Path("run"))
            show_record(run, json=False)  # appends the results, as `torchcaps train` does
            with events._open("events.json", "w") as file:
                json.dump(events.names, file)

        child = Child(work, self.folder)
        child.wait()
        return child


def main(folder: Path, share: int) -> dict:
    use_few_digits()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "whole").mkdir()
    whole = Killed(folder / "whole")
    child = whole.go()
    assert child.code == 0, child.words()
    wanted = outcome(whole.folder)
    names = json.loads((whole.folder / "events.json").read_text())
    faults = []
    halves = tuple(f"half of write {name}" for name in ("results", "run/recipe.json"))
    always = (n for n, name in enumerate(names) if name.startswith(halves))
    tried = sorted({*range(share // 2, len(names), share), *always})
    for at in tried:
        place = folder / "killed"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        killed = Killed(place)
        died = killed.go(at).code
        again = killed.go(at // 2 if at % 3 == 0 else None)  # every third is killed once more
        if again.code == -signal.SIGKILL:
            again = killed.go()
        where = f"event {at}, {names[at].replace(str(place), '')}"
        if died != -signal.SIGKILL or again.code != 0:
            faults.append(f"{where}: {died}, then {again.code}: {again.words()[-2000:]}")
            continue
        found = outcome(place)
        faults += [f"{where}: another {key}" for key in wanted if found[key] != wanted[key]]
    paths = (name.split()[-1] for name in names)  # of a folder that is removed, names alone
    outside = [p for p in paths if p.startswith(("/", "..")) and not p.startswith(str(folder))]
    return {
        "events": len(names), "tried": len(tried), "faults": faults, "names": names,
        "outside": outside,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]).resolve(), int(sys.argv[2]))))
