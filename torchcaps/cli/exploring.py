"""The command that opens a page on trained models."""

import socket
import webbrowser
from pathlib import Path
from typing import Any

from torchcaps.cli.parse import Data, Runs
from torchcaps.cli.saying import RESULTS, console
from torchcaps.errors import TorchcapsError, require

PORT = 8117
TRIED = 20
"""Ports that are tried, one after the other."""


def explore(runs: Runs = (), /, port: int = PORT, open: bool = True, data: Data = "digits") -> None:
    """See in a browser what capsules do: turn an image, move a unit, follow the routing.

    Without words: the finished runs under runs/, newest first, and the models that come with
    torchcaps. Needs pip install 'torchcaps[explore]'.

    Example: torchcaps explore runs/demo/capsnet runs/demo/convnet-avg

    Args:
        runs: Folders of finished runs or of saved models, ids of the hub, zoo:NAME.
        port: The port on this machine; where it is taken, the next free one.
        open: Whether the browser is opened.
        data: Images to show with saved models and those of the hub, which come without their own.
    """
    require("fastapi", "explore")
    require("uvicorn", "explore")
    sock = _bound(port)
    from torchcaps.explorer.server import serve
    from torchcaps.explorer.shelf import Shelf, finished_runs

    shelf = Shelf(list(runs) or [r for r in finished_runs() if _readable(r)], data=data)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}/"
    count = len(shelf.books)
    console.print(f"explorer: {url}  ({count} models; Ctrl-C ends it)", highlight=False)
    if open:
        webbrowser.open(url)
    try:
        serve(shelf, sock, _printed)
    except KeyboardInterrupt:
        pass
    finally:
        sock.close()


def _readable(folder: Path) -> bool:
    """Whether a run that nobody asked for can be shown; one that is damaged is named."""
    from torchcaps.train.run import Run

    try:
        return bool(Run.open(folder).recipe() and Run(folder).record())
    except TorchcapsError as error:
        console.print(f"left out: {error}", style="yellow", markup=False, highlight=False)
        return False


def _bound(port: int) -> socket.socket:
    """A socket of this machine alone, at the port or the next that is free."""
    if not 0 <= port < 65536:
        raise TorchcapsError(f"--port {port}: a port lies between 0 and 65535.")
    for tried in range(port, min(port + TRIED, 65536)):
        # named TCP, so that asyncio sends at once: without it every answer waits 40 ms
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", tried))
            sock.listen()  # a browser that is quicker than the models waits
        except OSError:
            sock.close()
            continue
        if tried != port and port:
            console.print(f"Port {port} is taken; this is {tried}.", highlight=False)
        return sock
    raise TorchcapsError(f"Ports {port} to {port + TRIED - 1} are all taken: give another --port.")


def _printed(record: dict[str, Any]) -> list[dict[str, Any]]:
    """What the table of a run's paper has in its row: ours so far, and the paper's."""
    from torchcaps.experiments.tables import cells, list_tables

    recipe = record["recipe"]
    if not recipe.get("paper"):
        return []
    return [
        {name: cell[name] for name in ("column", "protocol", "mean", "std", "n", "paper_value")}
        for table in list_tables(recipe["paper"])
        if table.name == recipe["table"]
        for cell in cells(table, RESULTS)
        if cell["row"] == recipe["row"] and (cell["n"] or cell["paper_value"] is not None)
    ]
