"""Attacks: a portion of each with the other tests, all of it with TORCHCAPS_ATTACK=500."""

import json
import os
import subprocess
import sys
from typing import Any

ATTACK = int(os.environ.get("TORCHCAPS_ATTACK", "0"))
"""Damaged runs that are tried on demand; all else is then tried as often as docs/reliability.md
says.
"""


def driven(driver: str, *words: Any) -> Any:
    """What a driver of this folder prints, from a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", f"tests.attack.{driver}", *map(str, words)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=3600 if ATTACK else 1800,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])
