"""The house keeps its shape: who imports whom, and a line in the map for every module."""

import ast
from pathlib import Path

import torchcaps

ROOT = Path(torchcaps.__file__).parent
LINES = (torchcaps.__doc__ or "").splitlines()
ROOMS = {line.split()[1]: int(line[0]) for line in LINES if line[:1].isdigit()}


def modules() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if p.name not in ("__init__.py", "__main__.py"))


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchcaps"):
            parts = (node.module or "").split(".")
            found |= (
                {parts[1]} if len(parts) > 1 else {a.name for a in node.names if a.name in ROOMS}
            )
        elif isinstance(node, ast.Import):
            found |= {
                a.name.split(".")[1]
                for a in node.names
                if a.name.startswith("torchcaps.") and a.name.split(".")[1] in ROOMS
            }
    return found


def test_a_room_imports_only_smaller_numbers():
    for path in ROOT.rglob("*.py"):
        own = room(path)
        if own == "__init__":
            continue
        for other in imported_rooms(path) - {own}:
            assert ROOMS[other] < ROOMS[own], f"{path.relative_to(ROOT)} imports {other}"


def test_every_module_has_its_line_in_the_map():
    words = set((torchcaps.__doc__ or "").replace(",", " ").split())
    for path in modules():
        assert path.stem in words, f"{path.relative_to(ROOT)} is not in the map"


def test_files_stay_short_and_there_is_no_utils():
    for path in modules():
        assert len(path.read_text().splitlines()) <= 500, path
        assert "util" not in path.stem


def test_every_module_says_what_it_is():
    for path in ROOT.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
