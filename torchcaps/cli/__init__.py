"""The command line. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C."""

import os
import sys
import warnings
from typing import Any

from torchcaps.errors import Interrupted, TorchcapsError, TorchcapsWarning, UsageError


def main(arguments: list[str] | None = None) -> int:
    """Entry point; a traceback only with --debug."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [w for w in words if w != "--debug"]
    from torchcaps.cli.commands import run_command

    try:
        with warnings.catch_warnings():
            warnings.showwarning = _as_line(warnings.showwarning)
            warnings.simplefilter("default", TorchcapsWarning)
            return run_command(words)
    except TorchcapsError as error:
        if debug:
            raise
        print(f"torchcaps: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except Interrupted as stopped:
        print(f"torchcaps: stopped. Go on with: torchcaps resume {stopped}", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print("torchcaps: stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a disk that is full or read-only, a file that nobody may open
        if debug:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"torchcaps: {where}{error.strerror or error}.", file=sys.stderr)
        return 1
    except Exception as error:
        if debug:
            raise
        text = str(error).strip().split("\n")[0]
        print(f"torchcaps: {type(error).__name__}: {text}\nSee more with --debug.", file=sys.stderr)
        return 1


def _as_line(show: Any) -> Any:
    """A function that shows our own warnings as a line, and others as `show` does."""

    def showwarning(message: Any, category: Any, *where: Any, **options: Any) -> None:
        if issubclass(category, TorchcapsWarning):
            print(f"torchcaps: warning: {message}", file=sys.stderr)
        else:
            show(message, category, *where, **options)

    return showwarning
