"""A job as JSON, and the one function that every place calls with it."""

import json
import os
import platform
import traceback
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from torchcaps import __version__, plugins
from torchcaps.errors import Interrupted, TorchcapsError
from torchcaps.escape import Console


@dataclass(frozen=True)
class Job:
    """A function and its arguments, safe to run twice."""

    function: str
    """Module and function: torchcaps.papers.reproduce:train_and_record."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments, as JSON. No secrets: a place writes them to files."""
    name: str = ""
    """Name in messages."""
    log: str = ""
    """File that its console appends to, relative to the root."""
    nodes: int = 1
    """Machines that train together; each runs the function `processes` / `nodes` times."""
    processes: int = 1
    """Processes over all nodes."""

    def to_json(self, code: str = "") -> str:
        """The job with its surroundings: root, plug-ins, and the code that it must run with."""
        context = {"root": os.getcwd(), "plugins": list(plugins.loaded()), "code": code}
        return json.dumps({**vars(self), **context}, sort_keys=True)


@dataclass(frozen=True)
class Outcome:
    """A job that ended. error: empty, or why it failed"""

    job: Job
    error: str = ""


def code_version() -> str:
    """Version and commit of the code of this process."""
    from torchcaps.training.provenance import commit  # torch takes seconds to import

    return f"{__version__} {commit()}"


def work(text: str) -> str:
    """Run one job from its JSON. -> empty, or the error; `Interrupted` passes"""
    job = json.loads(text)
    if os.getcwd() != job["root"]:
        os.chdir(job["root"])
    with ExitStack() as stack:
        log = os.devnull
        if job["log"]:
            log = job["log"]
            Path(log).parent.mkdir(parents=True, exist_ok=True)
        console = Console(file=stack.enter_context(Path(log).open("a")))
        try:
            _check_code(job["code"])
            for source in job["plugins"]:
                plugins.load(source)
            module, _, name = job["function"].partition(":")
            getattr(import_module(module), name)(**job["arguments"], console=console)
        except Interrupted:
            raise
        except Exception as error:  # one job that fails leaves the others
            if not isinstance(error, TorchcapsError):
                console.print(traceback.format_exc(), markup=False, highlight=False)
            return str(error).strip().split("\n")[0] or type(error).__name__
    return ""


def _check_code(wanted: str) -> None:
    """Raise if a node has other code than the driver: its runs would not be comparable."""
    if wanted and wanted != (found := code_version()):
        raise TorchcapsError(
            f"{platform.node()} has torchcaps {found}, the driver {wanted}. Install the same code "
            "on every machine."
        )
