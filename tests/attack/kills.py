"""Commands that are killed at random moments: python -m tests.attack.kills FOLDER COUNT prints as
JSON what came of so many kills. Each run is killed five times, then goes on to its end.
"""

import json
import os
import random
import shutil
import sys
import time
from pathlib import Path

from tests.attack.forks import Child, outcome, use_few_digits
from torchcaps.cli import main as command

TRAIN = [
    "train", "demo/capsnet", "--steps", "12", "--validate-every", "4", "--batch-size", "50",
    "--model.channels", "8", "--model.num-types", "2", "--model.hidden", "16", "--metrics",
    "--hardware.accelerator", "cpu", "--checkpoint-seconds", "0", "--record", "--out", "run",
]  # fmt: skip
EACH = 5
"""Kills of a run before it may end."""


def main(folder: Path, count: int, seed: int = 0) -> dict:
    use_few_digits()
    chance = random.Random(seed)

    def go(place: Path) -> Child:
        def work() -> int:
            begun = Path("run/recipe.json").exists()
            return command(["resume", "run"] if begun else TRAIN)

        return Child(work, place)

    whole = folder / "whole"
    whole.mkdir(parents=True)
    began = time.monotonic()
    child = go(whole)
    assert child.wait() == 0, child.words()
    takes, wanted = time.monotonic() - began, outcome(whole)
    kills, runs, faults = 0, 0, []
    while kills < count:
        place = folder / "killed"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        runs += 1
        for _ in range(EACH):
            child, ends = go(place), time.monotonic() + chance.uniform(0, takes)
            while time.monotonic() < ends and child.poll() is None:
                time.sleep(0.002)
            if child.poll() is not None:
                break
            child.kill()
            kills += 1
        last = go(place)
        if last.wait() != 0:
            faults.append(f"run {runs}: {last.words()[-2000:]}")
            continue
        found = outcome(place)
        faults += [f"run {runs}: another {key}" for key in wanted if found[key] != wanted[key]]
    return {"kills": kills, "runs": runs, "seconds of a run": takes, "faults": faults}


if __name__ == "__main__":
    os.environ["TERM"] = "dumb"
    print(json.dumps(main(Path(sys.argv[1]).resolve(), int(sys.argv[2]))))
