"""The explorer starts where users start it."""

import asyncio
import signal
import webbrowser

from conftest import read_and_stop
from torchcaps.explorer.serve import explore_models


def test_it_starts_in_a_notebook(monkeypatch, capsys):
    """A notebook runs its cells inside an event loop."""
    monkeypatch.setattr(webbrowser, "open", read_and_stop)

    async def cell():
        explore_models(["capsnet-small.digits"], 8217, True, "digits")

    loop = asyncio.new_event_loop()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    try:
        loop.run_until_complete(cell())
    finally:
        signal.signal(signal.SIGINT, before)
        loop.close()
    assert "models; Ctrl-C ends it" in capsys.readouterr().out
