"""How README, the site and the changelog are written: plain English, numbers from tables."""

import re
from pathlib import Path

import pytest
import torch

from tests.test_map import DIALECT
from torchcaps import data

ROOT = Path(__file__).parents[1]
SITE = [p for p in (ROOT / "docs").rglob("*.md") if "lab-notes" not in p.parts]
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")] + sorted(SITE)
"""What users read; lab notes keep the words of their time."""
TABLE = re.compile(r"<!-- (?:torchcaps|scripts).*?<!-- end -->", re.S)
CODE = re.compile(r"^```.*?^```|^    [^\n]*|`[^`\n]*`|\A---.*?^---|\]\([^)\n]*\)", re.S | re.M)
PHRASES = re.compile(
    DIALECT.pattern + r"|one that never was|\bgoes on\b|\bbegin again\b|"
    r"\bwandering views\b|\brivals?\b|\bnobody\b|comes first\b|\bchances\b|\bwhat was told\b|"
    r"\bthe surest\b|held against|\bwhatever it may\b",
    re.I,
)
"""Phrases of the style guide's column `not`, which have no other meaning here."""
MEASURED = re.compile(
    r"\d+(?:\.\d+)? ?%(?! interval)|\d ?± ?\d|(?<![\w.])\d{2}\.\d+(?![\w.])|\d+(?:\.\d+)? ms\b"
)
"""Results of runs, as they would stand in prose."""


def prose(page: Path) -> list[tuple[int, str]]:
    """Lines of text with their numbers, without generated tables, code and links."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    text = CODE.sub(blank, TABLE.sub(blank, page.read_text()))
    return list(enumerate(text.split("\n"), 1))


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_are_in_plain_english(page):
    for number, line in prose(page):
        assert not PHRASES.search(line), f"{page}:{number}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_results_in_prose_come_from_generated_tables(page):
    for number, line in prose(page):
        if not line.startswith(("|", "Accuracy in per cent")):
            assert not MEASURED.search(line), f"{page}:{number}: {line}"


def test_a_number_and_a_phrase_are_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("CapsNet has 99.2 % here.\n\n    torchcaps eval --min 99.2\n")
    assert [n for n, line in prose(page) if MEASURED.search(line)] == [1]
    assert PHRASES.search("'x' is none of a, b")


def test_pages_of_papers_and_the_readme_stay_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130
    for page in (ROOT / "docs" / "papers").glob("*.md"):
        assert len(page.read_text().splitlines()) <= 120, page


def test_no_cell_of_the_readme_is_empty():
    rows = [x for x in (ROOT / "README.md").read_text().splitlines() if x.startswith("|")]
    assert len(rows) > 20
    for row in rows:
        assert all(c.strip() not in ("", "–") for c in row.strip("|").split("|")), row


def test_the_readme_example_runs(tmp_path, monkeypatch, capsys):
    """With a hundred images and one epoch."""
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    short = code.replace('data="digits", epochs=3)', "data=small, epochs=1, quiet=True)")
    assert short != code
    rows = torch.arange(0, 4000, 40)
    digits = data.load("digits").train
    names: dict = {"small": (digits.images[rows], digits.labels[rows])}
    exec(compile(short, "README.md", "exec"), names)
    assert names["run"].finished and names["poses"].shape == (4, 10, 16)
    assert "report.html" in capsys.readouterr().out
