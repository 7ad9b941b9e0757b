"""README and docs hold what the program prints, and only commands and files that there are."""

import re
import runpy
from pathlib import Path

import pytest

from scripts.fill_tables import BLOCK, filled
from torchcaps.cli.commands import COMMANDS, GROUPS, HIDDEN
from torchcaps.models import list_models
from torchcaps.training.registry import recipes

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_tables_are_those_that_the_program_makes(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    text = page.read_text()
    assert filled(text) == text, "make docs"
    assert text.count("<!-- end -->") == len(BLOCK.findall(text))


def test_a_number_typed_by_hand_is_noticed(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "README.md").read_text()
    typed = re.sub(r"View-CapsNet: \d", "View-CapsNet: 1", text, count=1)
    assert typed != text and filled(typed) == text


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_commands_recipes_and_links_are_there(page):
    text = page.read_text()
    for command, word in re.findall(r"(?m)^    torchcaps (\w+)(?: (\w+))?", text):
        assert command in {**COMMANDS, **HIDDEN}, command
        if command in GROUPS and word:
            assert word in GROUPS[command], f"{command} {word}"
    known = recipes()
    for recipe in re.findall(r"(?m)^    torchcaps train ([\w/-]+)", text):
        models = (*list_models(every=True), "auto", "RECIPE", "MODEL")
        assert recipe in known or recipe in models, recipe
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert link.startswith("http") or (page.parent / link).exists(), link
    for path in re.findall(r"`((?:torchcaps|benchmarks|examples)/[\w/]+\.py)`", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"(?<![\w/])docs/[\w/-]+\.md", text):
        assert (ROOT / path).exists(), path


def test_a_routing_layer_in_a_network_of_ones_own_learns(capsys):
    example = runpy.run_path(str(ROOT / "examples/routing_layer.py"))
    assert example["main"](steps=60) > 0.6
    assert "test digits are right" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*num_workers")
@pytest.mark.filterwarnings("ignore:The `srun` command")  # a hint of Lightning's where SLURM is
def test_lightnings_loop_trains_a_model(capsys):
    example = runpy.run_path(str(ROOT / "examples/lightning_loop.py"))
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    assert example["main"](steps=20, **quiet) > 0.4
    assert "test digits are right" in capsys.readouterr().out
