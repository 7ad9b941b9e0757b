"""A disk of 3 MB that others fill: python -m tests.attack.disk DISK ELSEWHERE FREE… prints as JSON
what came of a run that had so many kilobytes free, from its start, at its end (`late:40`) or before
its results are recorded (`lines:0`), and of its going on once there was room. DISK is where a file
system of that size is mounted already.
"""

import json
import os
import shutil
import sys
from pathlib import Path

from tests.attack.forks import Child, outcome, use_few_digits
from torchcaps.cli import main as command
from torchcaps.papers import records
from torchcaps.training import loop

TRAIN = [
    "train", "demo/capsnet", "--steps", "6", "--validate-every", "3", "--batch-size", "50",
    "--model.channels", "4", "--model.num-types", "1", "--model.hidden", "8", "--metrics",
    "--model.pose-dim", "4", "--model.class-pose-dim", "4",
    "--hardware.accelerator", "cpu", "--checkpoint-seconds", "0", "--record", "--out", "run",
]  # fmt: skip


def go(place: Path, said: Path, when: str = "", free: int = 0) -> Child:
    def work() -> int:
        if when == "late":
            loop.finish = filling(loop.finish, place.parent / "others", free)
        elif when == "lines":
            filled = filling(records.append_record, place.parent / "others", free)
            records.append_record = filled
        return command(["resume", "run"] if Path("run/recipe.json").exists() else TRAIN)

    child = Child(work, place, said=said)
    child.wait()
    return child


def fill(path: Path, free: int) -> None:
    """Take all but so many kilobytes of the disk that a path is on."""
    room = os.statvfs(path.parent).f_bavail * os.statvfs(path.parent).f_frsize
    with path.open("wb") as file:
        file.write(bytes(max(0, room - free * 1024)))


def filling(finish, path: Path, free: int):
    """The last steps of a run on a disk that others have filled meanwhile."""

    def filled(*arguments):
        fill(path, free)
        return finish(*arguments)

    return filled


def main(disk: Path, elsewhere: Path, sizes: list[str]) -> dict:
    use_few_digits()
    whole = elsewhere / "whole"
    whole.mkdir(parents=True)
    child = go(whole, elsewhere / "whole.txt")
    assert child.code == 0, child.words()
    wanted, faults, said = outcome(whole), [], {}
    for free in sizes:
        place = disk / "work"
        place.mkdir()
        earlier = {"kind": "note", "match": {}, "note": "of others " * 300}  # most of a page
        (place / "results").mkdir()
        (place / "results/other.jsonl").write_text(json.dumps(earlier) + "\n")
        when, _, size = free.rpartition(":")
        if not when:
            fill(disk / "others", int(size))
        first = go(place, elsewhere / f"{free}.txt", when, int(size))
        lines = (place / "results/other.jsonl").read_text().splitlines(keepends=True)
        words = first.words().strip().splitlines()[-1:] if first.code else ["ended"]
        said[free] = words[0] if words else ""
        if any(not line.endswith("\n") or not json.loads(line) for line in lines):
            faults.append(f"{free} kB: half a line of results")
        if json.loads(lines[0]) != earlier:
            faults.append(f"{free} kB: a line of somebody else's is gone")
        if first.code not in (0, 1) or "Traceback" in first.words() or "Error:" in first.words():
            faults.append(f"{free} kB: exit {first.code}, {first.words()[-1500:]}")
        (disk / "others").unlink()
        again = go(place, elsewhere / f"{free}-again.txt")
        if again.code != 0:
            faults.append(f"{free} kB, with room again: {again.words()[-1500:]}")
        else:
            (place / "results/other.jsonl").write_text(
                "".join(x for x in (place / "results/other.jsonl").open() if '"kind"' not in x)
            )
            found = outcome(place)
            faults += [f"{free} kB: another {key}" for key in wanted if found[key] != wanted[key]]
        shutil.rmtree(place)
    return {"said": said, "faults": faults}


if __name__ == "__main__":
    paths = (Path(path).resolve() for path in sys.argv[1:3])
    print(json.dumps(main(*paths, sys.argv[3:])))
