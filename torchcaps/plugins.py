"""Plug-ins: a user's own routing, model, data set, metric or figure.

A plug-in is a Python file or module that registers what it defines when it is imported. It is
imported because the user names it (`--plugin`), or because an installed package offers it in the
entry-point group `torchcaps.plugins`; never because a run folder or a model names it.
"""

import hashlib
import importlib
import importlib.util
import sys
from importlib.metadata import entry_points
from pathlib import Path

from torchcaps.errors import TorchcapsError

BUILT_IN = ("torchcaps.papers.generative",)
"""Modules of torchcaps with models and data that no other part needs."""
_loaded: dict[str, str] = {}
_installed = False


def load(source: str) -> None:
    """Import a plug-in: the path of a .py file, or the name of a module."""
    path = Path(source).expanduser()
    if source in _loaded:
        return
    before = set(sys.modules)
    try:
        if path.suffix == ".py":
            if not path.is_file():
                raise TorchcapsError(f"{source}: no such file.")
            name = f"torchcaps_plugin_{path.stem}"
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module  # dataclasses look their module up there
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(source)
    except TorchcapsError:
        raise
    except ModuleNotFoundError as error:
        _forget(before)
        raise TorchcapsError(f"--plugin {source}: no module named {error.name!r}.") from None
    except Exception as error:
        _forget(before)
        text = str(error).split("\n")[0]
        raise TorchcapsError(f"--plugin {source}: {type(error).__name__}: {text}") from None
    file = getattr(module, "__file__", None)
    _loaded[source] = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""


def _forget(before: set[str]) -> None:
    """A module that failed halfway is imported again the next time."""
    for name in set(sys.modules) - before:
        if name.startswith("torchcaps_plugin_"):
            del sys.modules[name]


def loaded() -> dict[str, str]:
    """The plug-ins that the user named in this process, with the sha256 of their files."""
    return dict(_loaded)


def load_installed() -> None:
    """Import the plug-ins of installed packages, once; an unknown name may be one of theirs."""
    global _installed
    if _installed:
        return
    _installed = True
    for name in (*BUILT_IN, *(e.value for e in entry_points(group="torchcaps.plugins"))):
        importlib.import_module(name.partition(":")[0])
