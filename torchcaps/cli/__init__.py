"""The command line. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C."""

import io
import os
import sys
import warnings
from typing import Any

from torchcaps.errors import Interrupted, TorchcapsError, TorchcapsWarning, UsageError

NO_MEMORY = ("can't allocate memory", "failed to map segment", "CUDA out of memory")
"""Messages of torch and the loader of libraries that come without a MemoryError."""


def main(arguments: list[str] | None = None) -> int:
    """Entry point; a traceback only with --debug."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [w for w in words if w != "--debug"]
    _prepare_streams()
    from torchcaps.cli.commands import run_command
    from torchcaps.cli.console import complain

    try:
        with warnings.catch_warnings():
            warnings.showwarning = _as_line(warnings.showwarning)
            warnings.simplefilter("default", TorchcapsWarning)
            code = run_command(words)
        sys.stdout.flush()  # a full disk or a closed pipe shows here, not after the end
        return code
    except TorchcapsError as error:
        if debug:
            raise
        complain(str(error))
        return 2 if isinstance(error, UsageError) else 1
    except Interrupted as stopped:
        complain(f"stopped. Continue with: torchcaps resume {stopped}")
        return 130
    except KeyboardInterrupt:
        complain("stopped.")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a disk that is full or read-only, a file that nobody may open
        if debug:
            raise
        where = f"{error.filename}: " if error.filename else ""
        complain(f"{where}{error.strerror or error}.")
        return 1
    except Exception as error:
        if debug:
            raise
        text = str(error).strip().split("\n")[0]
        if isinstance(error, MemoryError) or any(words in text for words in NO_MEMORY):
            complain("not enough memory. Try a smaller batch size, or raise the limit (ulimit -v).")
            return 1
        complain(f"{type(error).__name__}: {text}\nSee more with --debug.")
        return 1


def _as_line(show: Any) -> Any:
    """A function that shows our own warnings as a line, and others as `show` does."""
    from torchcaps.cli.console import complain

    def showwarning(message: Any, category: Any, *where: Any, **options: Any) -> None:
        if issubclass(category, TorchcapsWarning):
            complain(f"warning: {message}")
        else:
            show(message, category, *where, **options)

    return showwarning


def _prepare_streams() -> None:
    """Let every command print: to a stream that was closed, and names to one of ASCII."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or stream.closed:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
