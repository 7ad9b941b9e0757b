"""The layout of docs/background/architecture.md: who imports whom, and a line for every module."""

import ast
import importlib
import re
import sys
from pathlib import Path

import torchcaps

ROOT = Path(torchcaps.__file__).parent
PAGE = ROOT.parent / "docs" / "background" / "architecture.md"
LINES = PAGE.read_text().partition("```text\n")[2].partition("```")[0].splitlines()
ROWS = {line.split()[1]: int(line.split()[0]) for line in LINES if line[:3].strip().isdigit()}
FAMILIES = {"mcae", "photos", "sparse", "generative", "scae"}
FAMILY_IMPORTS = ("torchcaps.training.task", "torchcaps.analysis")
"""What a model family's own task and figures may import from rows above the models."""


def mapped() -> set[str]:
    """Every module of the map by its path: a line's first word, in the folders above it."""
    paths, folders = set(), []
    for line in LINES:
        text = line[3:] if line[:3].strip().isdigit() else line
        depth = 0 if line[:3].strip().isdigit() else (len(line) - len(line.lstrip())) // 4
        folders = [*folders[:depth], text.split()[0]]
        paths.add("/".join(folders))
    return paths


def modules() -> list[Path]:
    return sorted(p for p in ROOT.rglob("*.py") if p.name not in ("__init__.py", "__main__.py"))


def row_name(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The modules of torchcaps that a file imports, at its top or in its functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchcaps"):
            module = node.module or ""
            names |= (
                {module} if "." in module else {f"{module}.{alias.name}" for alias in node.names}
            )
        elif isinstance(node, ast.Import):
            names |= {a.name for a in node.names if a.name.startswith("torchcaps.")}
    return names


def type_checking(path: Path) -> set[str]:
    """Modules that are imported for annotations alone."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            names |= {n.module or "" for n in ast.walk(node) if isinstance(n, ast.ImportFrom)}
    return names


def in_family(path: Path) -> bool:
    parts = path.relative_to(ROOT).parts
    return parts[0] == "models" and len(parts) > 2 and parts[1] in FAMILIES


def test_a_module_imports_only_rows_above_it():
    for path in ROOT.rglob("*.py"):
        own = row_name(path)
        if own in ("__init__", "__main__"):  # above all rows
            continue
        for module in imports(path) - type_checking(path):
            other = module.split(".")[1]
            if other == own or other not in ROWS:
                continue
            if in_family(path) and module.startswith(FAMILY_IMPORTS):
                continue
            assert ROWS[other] < ROWS[own], f"{path.relative_to(ROOT)} imports {module}"


def test_families_do_not_import_each_other():
    for path in (p for p in modules() if in_family(p)):
        family = path.relative_to(ROOT).parts[1]
        for other in FAMILIES - {family}:
            shared = {m for m in imports(path) if m.startswith(f"torchcaps.models.{other}")}
            allowed = family == "scae" and other == "generative"  # it shares templates and bound
            assert not shared or allowed, f"{path.relative_to(ROOT)} imports {shared}"


def test_every_module_has_its_line_in_the_map_and_every_line_its_module():
    here = {str(path.relative_to(ROOT).with_suffix("")) for path in modules()}
    folders = {str(p.parent.relative_to(ROOT)) for p in ROOT.rglob("__init__.py")} - {"."}
    assert here | folders == mapped()


def test_no_public_name_hides_a_module():
    """`import torchcaps.training.loop as m` must give the module, whatever a package exports."""
    for path in ROOT.rglob("*.py"):
        if path.name == "__main__.py":
            continue
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if ".kernels." in name:  # Triton is not everywhere
            continue
        module = importlib.import_module(name)
        parent, _, last = name.rpartition(".")
        if parent and parent != "torchcaps":
            assert getattr(sys.modules[parent], last) is module, name


def test_every_test_stands_where_its_module_stands():
    """tests/<row>/test_<module>.py, or a name of its own in that folder."""
    tests = Path(__file__).parent
    for path in tests.rglob("test_*.py"):
        folder = path.relative_to(tests).parent
        if folder != Path("attack"):  # what is hostile comes through every door
            assert folder == Path(".") or (ROOT / folder).is_dir(), path


def test_files_stay_short_and_there_is_no_utils():
    for path in modules():
        assert len(path.read_text().splitlines()) <= 500, path
        assert "util" not in path.stem


def test_every_module_has_a_docstring():
    for path in ROOT.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path


DIALECT = re.compile(
    r"is none of|are none\b|is a sentence|is told|are told|is said|are said|is believed|"
    r"goes on with|count no more|a folder a class|taken for whom|Whether the "
)


def test_texts_are_plain_english():
    """Docstrings, comments, messages and help of the library."""
    for path in ROOT.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not DIALECT.search(line), f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
