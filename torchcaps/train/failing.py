"""What ends a run from outside, as a sentence that says how to go on."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from torchcaps.errors import TorchcapsError

_GONE = ("gloo", "nccl", "connection", "peer", "broken pipe", "socket", "process group", "store")
"""Words of what torch says when another process of the run has ended."""


@contextmanager
def told(folder: Path, processes: int) -> Iterator[None]:
    """A disk that takes no more, and a process that has gone, in words; the rest as it is."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TorchcapsError(
            f"{folder}: it cannot go on ({reason}). Once that is mended: torchcaps resume {folder}"
        ) from None
    except RuntimeError as error:
        if processes < 2 or not any(word in str(error).lower() for word in _GONE):
            raise
        raise TorchcapsError(
            f"{folder}: another of its {processes} processes has ended, so this one does. Go on "
            f"with as many: torchrun --nproc-per-node {processes} -m torchcaps.cli resume {folder}"
        ) from None
