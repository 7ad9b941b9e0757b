"""Files of the page, read once, and modules of it as text that a lone HTML file can hold."""

import base64
import re
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

KINDS = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".json": "application/json",
    ".wasm": "application/wasm", ".mjs": "text/javascript; charset=utf-8",
}  # fmt: skip
"""Ours, since a machine's own table may call a script plain text, and then no page appears."""


def static_files() -> dict[str, tuple[bytes, str]]:
    """Every file of the page by its path, read once: nothing else can be asked for."""
    found: dict[str, tuple[bytes, str]] = {}

    def walk(folder: Traversable, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                walk(entry, f"{prefix}{entry.name}/")
            elif "." in entry.name and f".{entry.name.rpartition('.')[2]}" in KINDS:
                kind = KINDS[f".{entry.name.rpartition('.')[2]}"]
                found[f"{prefix}{entry.name}"] = (entry.read_bytes(), kind)

    walk(files("torchcaps.explorer").joinpath("static"), "")
    return found


def import_map(scripts: Mapping[str, str]) -> dict[str, str]:
    """Modules as data addresses under `torchcaps/NAME`, each asking for others by that name."""
    found = {}
    for name, text in scripts.items():
        text = re.sub(r'from "\./([\w-]+\.js)"', r'from "torchcaps/\1"', text)
        content = base64.b64encode(text.encode()).decode()
        found[f"torchcaps/{name}"] = f"data:text/javascript;base64,{content}"
    return found
