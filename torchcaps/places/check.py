"""Check a folder and a place: locks, appends, clocks, versions, devices, memory and data.

Two jobs meet in the folder. Claims on run folders are locks of files; where a file system grants
one lock to two machines, two nodes could train one run, so such a folder is refused.
"""

import json
import os
import platform
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock

from torchcaps.errors import TorchcapsError
from torchcaps.escape import Console
from torchcaps.places.job import Job, code_version
from torchcaps.places.run import get_place, run_jobs

JOBS = 2
MEET_SECONDS = 600.0
"""Seconds in which the second job must start after the first."""
TURNS, HOLD, POLL = 20, 0.02, 0.005
LINES = 50
SKEW = 60.0
"""Seconds between the clocks of two machines from which dates in records mislead."""


@dataclass(frozen=True)
class Finding:
    """A sentence about the place. fatal: runs there would not be safe"""

    text: str
    good: bool = True
    fatal: bool = False


def probe(*, folder: str, number: int, data_root: str, console: Console) -> None:
    """The job: meet the other one, take turns at a lock, append lines, say what this machine is."""
    here = Path(folder)
    (here / f"here-{number}").touch()
    _wait(lambda: all((here / f"here-{n}").exists() for n in range(JOBS)), MEET_SECONDS)
    overlaps = sum(_turn(here, number) for _ in range(TURNS))
    for line in range(LINES):
        with FileLock(here / "lines.lock", poll_interval=POLL), (here / "lines").open("a") as file:
            file.write(json.dumps({"job": number, "line": line}) + "\n")
            file.flush()
            os.fsync(file.fileno())
    stamp = here / f"stamp-{number}"
    stamp.touch()
    facts = {
        "host": platform.node(),
        "overlaps": overlaps,
        "skew": time.time() - stamp.stat().st_mtime,
        "code": code_version(),
        "device": _device(),
        "free_gb": round(shutil.disk_usage(here).free / 1e9, 1),
        "data": sorted(p.name for p in Path(data_root).iterdir()) if data_root else [],
    }
    temporary = here / f"facts-{number}.tmp"
    temporary.write_text(json.dumps(facts))
    temporary.rename(here / f"facts-{number}.json")


def _turn(here: Path, number: int) -> bool:
    """Hold the lock for a moment. -> True if the other job held it too"""
    with FileLock(here / "turn.lock", poll_interval=POLL):
        holder = here / "holder"
        other_held = holder.exists()
        holder.write_text(str(number))
        time.sleep(HOLD)
        try:
            other_held = other_held or holder.read_text() != str(number)
        except OSError:
            other_held = True
        holder.unlink(missing_ok=True)
    time.sleep(HOLD / 2)
    return other_held


def _wait(ready: Any, seconds: float) -> None:
    ends = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > ends:
            raise TorchcapsError(
                f"the other job did not show up in {seconds:.0f} s: the folder is not shared, or "
                "the place runs one job at a time"
            )
        time.sleep(0.05)


def _device() -> str:
    from torchcaps.training.hardware import best_device
    from torchcaps.training.provenance import device_name

    return device_name(best_device())


def check_place(root: Path, on: str, data_root: str = "") -> Iterator[Finding]:
    """Run the check of a place in a folder; the last finding may be fatal."""
    if not root.is_dir():
        raise TorchcapsError(f"{root}: no such folder.")
    folder = root.absolute() / f".torchcaps-check-{uuid4().hex[:8]}"
    folder.mkdir()
    try:
        yield from _findings(folder, on, data_root)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _findings(folder: Path, on: str, data_root: str) -> Iterator[Finding]:
    jobs = [
        Job(
            "torchcaps.places.check:probe",
            {"folder": str(folder), "number": number, "data_root": data_root},
            name=f"job {number}",
        )
        for number in range(JOBS)
    ]
    errors = [o.error for o in run_jobs(jobs, get_place(on, JOBS)) if o.error]
    if errors:
        yield Finding(f"{errors[0]}.".replace("..", "."), good=False, fatal=True)
        return
    facts = [json.loads((folder / f"facts-{n}.json").read_text()) for n in range(JOBS)]
    yield from judge(facts, (folder / "lines").read_bytes())


def judge(facts: list[dict[str, Any]], lines: bytes) -> Iterator[Finding]:
    """Findings of the two jobs, as sentences."""
    hosts = sorted({fact["host"] for fact in facts})
    yield Finding(f"Two jobs ran on {' and '.join(hosts)}.")
    if len(hosts) == 1:
        yield Finding("Locks between machines are not tested: both jobs ran on one.", good=False)
    for fact in facts:
        yield Finding(f"{fact['host']}: {fact['device']}, {fact['free_gb']} GB free.")
    skew = abs(facts[0]["skew"] - facts[1]["skew"])
    yield Finding(f"Clocks differ by {skew:.1f} s.", good=skew < SKEW)
    same = facts[0]["data"] == facts[1]["data"]
    yield Finding("Data: the same sets." if same else "Data: different sets.", good=same)
    codes = {fact["code"] for fact in facts}
    yield Finding(f"Code: {' and '.join(sorted(codes))}.", good=len(codes) == 1)
    read = [line for line in lines.split(b"\n") if line]
    whole = len(read) == JOBS * LINES and len(set(read)) == len(read)
    overlaps = sum(fact["overlaps"] for fact in facts)
    if overlaps or not whole:
        what = (
            f"two jobs held one lock {overlaps} times" if overlaps else "appended lines were lost"
        )
        yield Finding(
            f"Refused: {what}. Mount the file system with flock (Lustre: -o flock; NFS: 4), "
            "or use another folder.",
            good=False,
            fatal=True,
        )
    else:
        yield Finding("Locks hold, and appended lines are whole.")
