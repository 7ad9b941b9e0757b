"""Start the explorer: a port, the models, a browser."""

import socket
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

from torchcaps.errors import TorchcapsError, require
from torchcaps.escape import Console
from torchcaps.explorer.shelf import Shelf, finished_runs
from torchcaps.training.run import Run

PORT = 8117
MAX_PORTS = 20
"""Ports to try, one after the other."""


def explore_models(
    sources: Sequence[str | Path],
    port: int,
    open: bool,
    data: str,
    console: Console | None = None,
    paper_rows: Any = None,
) -> None:
    """Serve the explorer until Ctrl-C.

    paper_rows: gives the table cells of a run's row, from its record
    """
    require("fastapi", "explore")
    require("uvicorn", "explore")
    console = console or Console()
    sock = _bound(port, console)
    from torchcaps.explorer.server import serve

    shelf = Shelf(list(sources) or [r for r in finished_runs() if _readable(r, console)], data=data)
    token = token_urlsafe(16)  # keeps other accounts of this machine out
    url = f"http://127.0.0.1:{sock.getsockname()[1]}/{token}/"
    text = f"explorer: {url}  ({len(shelf.books)} models; Ctrl-C ends it)"
    console.print(text, highlight=False, soft_wrap=True)
    if open:
        webbrowser.open(url)
    try:
        serve(shelf, sock, token, paper_rows or (lambda record: []))
    except KeyboardInterrupt:
        pass
    finally:
        sock.close()


def _readable(folder: Path, console: Console) -> bool:
    """True if a run that was not named can be shown; a damaged one is skipped with a message."""
    try:
        return bool(Run.open(folder).recipe() and Run(folder).record())
    except TorchcapsError as error:
        console.print(f"skipping: {error}", style="yellow", markup=False, highlight=False)
        return False


def _bound(port: int, console: Console) -> socket.socket:
    """A socket of this machine alone, at the port or the next free one."""
    if not 0 <= port < 65536:
        raise TorchcapsError(f"--port {port}: a port lies between 0 and 65535.")
    for number in range(port, min(port + MAX_PORTS, 65536)):
        # named TCP, so that asyncio sends at once: without it every answer waits 40 ms
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", number))
            sock.listen()  # a browser that is quicker than the models waits
        except OSError:
            sock.close()
            continue
        if number != port and port:
            console.print(f"Port {port} is in use; using {number}.", highlight=False)
        return sock
    raise TorchcapsError(f"Ports {port} to {port + MAX_PORTS - 1} are in use: give another --port.")
