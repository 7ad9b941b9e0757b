"""Static files of the explorer's page, and its modules as text inside a single HTML file."""

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
"""Media types by suffix; the machine's own table may call scripts plain text."""


def static_files() -> dict[str, tuple[bytes, str]]:
    """Content and media type of every file of the page by its path; no other file is served."""
    contents: dict[str, tuple[bytes, str]] = {}

    def walk(folder: Traversable, prefix: str) -> None:
        for entry in folder.iterdir():
            if entry.is_dir():
                walk(entry, f"{prefix}{entry.name}/")
            elif "." in entry.name and f".{entry.name.rpartition('.')[2]}" in KINDS:
                kind = KINDS[f".{entry.name.rpartition('.')[2]}"]
                contents[f"{prefix}{entry.name}"] = (entry.read_bytes(), kind)

    walk(files("torchcaps.explorer").joinpath("static"), "")
    return contents


def import_map(scripts: Mapping[str, str]) -> dict[str, str]:
    """Import map of modules as data URLs under `torchcaps/NAME`, the names they import."""
    urls = {}
    for name, text in scripts.items():
        text = re.sub(r'from "\./([\w-]+\.js)"', r'from "torchcaps/\1"', text)
        content = base64.b64encode(text.encode()).decode()
        urls[f"torchcaps/{name}"] = f"data:text/javascript;base64,{content}"
    return urls
