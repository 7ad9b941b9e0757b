"""Processes that train one run together (gloo, on the CPU): python -m tests.attack.ranks WHAT
FOLDER prints as JSON what came of it.

    curves  the run by 1, 2 and 4 processes: its curves
    killed  one of two is killed: how long the other lives on, and what it says
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from tests.attack.forks import Child, use_few_digits
from torchcaps.cli import main as command

TRAIN = [
    "train", "demo/capsnet", "--batch-size", "40", "--model.channels", "8", "--model.num-types",
    "2", "--model.hidden", "16", "--metrics", "--hardware.accelerator", "cpu", "--out", "run",
]  # fmt: skip


def together(folder: Path, world: int, *words: str) -> list[Child]:
    """A child a rank, with what torchrun tells its processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
    several = ["--hardware.devices", str(world), "--hardware.strategy", "ddp"] if world > 1 else []
    children = []
    for rank in range(world):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        environment = {**shared, **{k: str(v) for k, v in place.items()}} if world > 1 else {}
        children.append(
            Child(
                lambda: command([*TRAIN, *words, *several]),
                folder,
                environment,
                said=folder / f"said-{rank}.txt",
            )
        )
    return children


def curves(folder: Path) -> dict:
    found = {}
    for world in (1, 2, 4):
        place = folder / str(world)
        place.mkdir(parents=True)
        for child in together(place, world, "--steps", "15", "--validate-every", "5"):
            assert child.wait(120) == 0, child.words()
        lines = (place / "run/metrics.jsonl").read_text().splitlines()
        found[world] = [json.loads(line) for line in lines]
    return found


def killed(folder: Path, victim: int) -> dict:
    """Rank `victim` is killed in the midst of training."""
    place = folder / f"without-{victim}"
    place.mkdir(parents=True)
    ranks = together(place, 2, "--epochs", "100000")
    while not (place / "run/metrics.jsonl").exists():
        assert all(child.poll() is None for child in ranks), [c.words() for c in ranks]
        time.sleep(0.05)
    os.kill(ranks[victim].pid, signal.SIGKILL)
    began, other = time.monotonic(), ranks[1 - victim]
    code = other.wait(60)
    return {"seconds": time.monotonic() - began, "code": code, "words": other.words()}


if __name__ == "__main__":
    use_few_digits()
    what, where = sys.argv[1], Path(sys.argv[2]).resolve()
    found = curves(where) if what == "curves" else [killed(where, victim) for victim in (0, 1)]
    print(json.dumps(found))
