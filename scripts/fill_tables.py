"""Fill the tables in README and docs: `python scripts/fill_tables.py [--check] FILE_OR_FOLDER…`.

<!-- torchcaps paper table robustness table1 --markdown -->
whatever stands here is what that command prints
<!-- end -->

A block can also name `scripts/overview.py TABLE`.
"""

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

BLOCK = re.compile(r"(<!-- (torchcaps|scripts/overview.py) ([^\n]+?) -->\n).*?(<!-- end -->)", re.S)


def _printed(program: str, command: str) -> str:
    if program == "scripts/overview.py":
        from scripts.overview import overview

        return overview(*shlex.split(command))
    from torchcaps.cli import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        if main(shlex.split(command)):
            raise SystemExit(f"torchcaps {command} failed")
    return said.getvalue().strip()


def filled(text: str) -> str:
    """The text with every block as its command prints it today."""
    return BLOCK.sub(lambda m: f"{m[1]}\n{_printed(m[2], m[3])}\n\n{m[4]}", text)


def stale(files: list[Path]) -> list[Path]:
    """Files whose tables are not those that the program makes."""
    return [file for file in files if filled(file.read_text()) != file.read_text()]


if __name__ == "__main__":
    words = sys.argv[1:]
    paths = [Path(word) for word in words if word != "--check"]
    files = [f for p in paths for f in (sorted(p.rglob("*.md")) if p.is_dir() else [p])]
    if "--check" in words:
        sys.exit(" ".join(f"{file} is out of date: make docs." for file in stale(files)) or 0)
    for file in files:
        file.write_text(filled(file.read_text()))
