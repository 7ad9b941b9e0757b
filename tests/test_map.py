"""The house keeps its shape: who imports whom, and a line in the map for every module."""

import ast
import importlib
import re
import sys
from pathlib import Path

import torchcaps

ROOT = Path(torchcaps.__file__).parent
LINES = (torchcaps.__doc__ or "").splitlines()
ROOMS = {line.split()[1]: int(line[0]) for line in LINES if line[:1].isdigit()}


def mapped() -> set[str]:
    """Every module of the map, by its path: a line's first words, in the rooms above it."""
    found, folders = set(), []
    for line in LINES:
        depth = (len(line) - len(line.lstrip())) // 4
        words = re.match(r"(?:\d )?([\w, ]+?)(?:  +\S.*)?$", line.strip())
        if not words or not (line[:1].isdigit() or line.startswith("    ")):
            continue
        names = [name.strip() for name in words[1].split(",")]
        folders = [*folders[:depth], names[0]]
        found |= {"/".join([*folders[:depth], name]) for name in names}
    return found


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
        if own in ("__init__", "__main__"):  # above all rooms
            continue
        for other in imported_rooms(path) - {own}:
            assert ROOMS[other] < ROOMS[own], f"{path.relative_to(ROOT)} imports {other}"


def test_every_module_has_its_line_in_the_map_and_every_line_its_module():
    """By path, so that `views` of the models is not taken for `views` of the analysis."""
    here = {str(path.relative_to(ROOT).with_suffix("")) for path in modules()}
    folders = {str(p.parent.relative_to(ROOT)) for p in ROOT.rglob("__init__.py")} - {"."}
    assert here | folders == mapped()


def test_no_public_name_hides_a_module():
    """`import torchcaps.train.loop as m` must give the module, whatever the package exports."""
    for path in ROOT.rglob("*.py"):
        if path.name == "__main__.py":
            continue
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if ".kernels." in name:  # Triton is not everywhere
            continue
        module = importlib.import_module(name)
        parent, _, last = name.rpartition(".")
        if parent:
            assert getattr(sys.modules[parent], last) is module, name


def test_every_test_stands_where_its_module_stands():
    """tests/<room>/test_<module>.py, or a name of its own in that room."""
    tests = Path(__file__).parent
    for path in tests.rglob("test_*.py"):
        room_of = path.relative_to(tests).parent
        if room_of != Path("attack"):  # what is hostile comes through every door
            assert room_of == Path(".") or (ROOT / room_of).is_dir(), path


def test_files_stay_short_and_there_is_no_utils():
    for path in modules():
        assert len(path.read_text().splitlines()) <= 500, path
        assert "util" not in path.stem


def test_every_module_says_what_it_is():
    for path in ROOT.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path
