"""Docstrings as this library writes them, as reStructuredText for autodoc.

Text is escaped, so no docstring can break the build. `code` becomes a literal, lines
`name: text` a list of parameters, indented blocks stay as they are.
"""

import inspect
import re
from typing import Any

from sphinx.application import Sphinx

ITEM = re.compile(r"(?:^|(?<=[.;:] ))(\w+(?:(?:, | and )\w+)*)((?: \[[^\]]*\])?): ")
"""`name: text`, at the beginning of a line or after a sentence; `name [B,I]: text` with a shape."""


def _escaped(line: str) -> str:
    """The line with everything literal that reStructuredText would read as markup."""
    pieces = re.split(r"(``[^`]+``|`[^`]+`)", line)
    return "".join(
        f"``{piece.strip('`')}``" if piece.startswith("`") else _literal(piece) for piece in pieces
    )


def _literal(text: str) -> str:
    return re.sub(r"([\\*_|`])", r"\\\1", text)


def _parameters(thing: Any) -> set[str]:
    try:
        return set(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return set()


def _blocks(lines: list[str]) -> list[list[str]]:
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return [block for block in blocks if block]


def _paragraph(block: list[str], parameters: set[str]) -> list[str]:
    """A paragraph; its items `name: text` become a list of parameters."""
    pieces: list[tuple[str, str]] = [("", "")]  # names, text
    for line in block:
        end = 0
        for item in ITEM.finditer(line):
            if set(re.split(", | and ", item[1])) <= parameters:
                names, text = pieces[-1]
                pieces[-1] = names, f"{text} {line[end : item.start()]}".strip()
                pieces.append((item[1].replace(" and ", ", "), item[2].strip()))
                end = item.end()
        names, text = pieces[-1]
        pieces[-1] = names, f"{text} {line[end:]}".strip()
    (_, before), *items = pieces
    out = [_escaped(before)] if before else []
    return [*out, "", *(f":param {names}: {_escaped(text)}" for names, text in items), ""]


def convert(text: list[str], parameters: set[str]) -> list[str]:
    out: list[str] = []
    for block in _blocks(text):
        if block[0].lstrip().startswith(">>>"):
            out += [*(line.strip() for line in block), ""]
        elif block[0].startswith("    "):
            out += ["::", "", *block, ""]
        elif block[0].startswith("- "):
            out += [_escaped(line) for line in block] + [""]
        else:
            out += _paragraph(block, parameters)
    return out


def _process(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = convert(list(lines), _parameters(thing))


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True}
