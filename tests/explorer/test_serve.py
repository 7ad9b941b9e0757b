"""The explorer starts where users start it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NOTEBOOK = """
import asyncio, signal, webbrowser
from conftest import read_and_stop
from torchcaps.explorer.serve import explore_models

async def cell():
    explore_models(["capsnet-small.digits"], 8217, True, "digits")

signal.signal(signal.SIGINT, signal.default_int_handler)
webbrowser.open = read_and_stop
asyncio.new_event_loop().run_until_complete(cell())  # not asyncio.run, which takes Ctrl-C
"""


def test_it_starts_in_a_notebook():
    """A notebook runs its cells in an event loop; a new process, as Playwright has one here."""
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "models; Ctrl-C ends it" in done.stdout
