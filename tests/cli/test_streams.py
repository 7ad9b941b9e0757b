"""What a terminal, a pipe and a closed stream get, whatever names the user's files have."""

import csv
import io
import subprocess
import sys

import pytest
from PIL import Image

import torchcaps
from torchcaps.cli import main
from torchcaps.training.loop import start

HOSTILE = "\x1b[2J[/x]=\u202e{}"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model whose classes have hostile names, and an image with such a name."""
    folder = tmp_path_factory.mktemp("model")
    model = torchcaps.create_model("capsnet-small.digits", pretrained=True)
    model.class_names = ("=HYPERLINK(1)", *(HOSTILE.format(n) for n in range(1, 10)))
    model.save_pretrained(folder)
    Image.new("L", (28, 28)).save(folder / "-\x1b[2J[/x.png".replace("/", "|"))
    return folder


def test_names_reach_no_terminal_as_commands(model, capsys):
    assert main(["predict", str(model), str(model), "--top-k", "10"]) == 0
    out = capsys.readouterr().out
    assert "\\x1b[2J[/x]=\\u202e9" in out and out.replace("\n", "").isprintable()
    assert main(["predict", str(model), "\x1b[2J"]) == 2
    err = capsys.readouterr().err
    assert "\\x1b[2J" in err and "\x1b" not in err


def test_names_reach_no_spreadsheet_as_formulas(model, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(model)
    (file,) = (p.name for p in model.glob("*.png"))
    assert main(["predict", str(model), f"./{file}", "--csv", "--top-k", "10"]) == 0
    _, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    assert len(rows) == 10 and {name for _, name, _ in rows} >= {"'=HYPERLINK(1)"}
    assert all(not cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row)
    assert main(["embed", str(model), ".", "--out", str(tmp_path / "x.csv")]) == 0
    assert "\x1b" not in (tmp_path / "x.csv").read_text()


def test_the_card_of_a_model_has_no_tags(model):
    loaded = torchcaps.load(model)
    loaded.class_names = ("<script>", "a | b", *loaded.class_names[2:])
    card = loaded.model_card()
    assert "<script>" not in card and "a | b" not in card and "\x1b" not in card


def test_brackets_in_a_folder_are_no_markup(tiny_recipe, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = start(tiny_recipe, tmp_path / "[" / "x]").folder
    assert main(["resume", "[/x]"]) == 0
    assert main(["paper", "record", "[/x]", "--results", "results"]) == 0
    assert main(["eval", "[/x]"]) == 0
    assert main(["runs", "list", "["]) == 0
    assert "[/x]" in capsys.readouterr().out and run.exists()


def torchcaps_in(shell: str) -> subprocess.CompletedProcess:
    command = shell.replace("TORCHCAPS", f"{sys.executable} -m torchcaps")
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=100)


@pytest.mark.slow
@pytest.mark.parametrize("shell", [
    "PYTHONIOENCODING=ascii TORCHCAPS eval capsnet-small.digits",
    "PYTHONIOENCODING=ascii TORCHCAPS paper table generative table1",
    "TORCHCAPS eval capsnet-small.digits >&-",
    "TORCHCAPS list >&- 2>&-",
    "TORCHCAPS list models | head -1",
])  # fmt: skip
def test_any_stream_will_do(shell):
    done = torchcaps_in(f"set -o pipefail; {shell}")
    assert done.returncode == 0, done.stderr
    assert "Error" not in done.stderr


@pytest.mark.slow
def test_a_full_device_is_named():
    done = torchcaps_in("TORCHCAPS list > /dev/full")
    assert done.returncode == 1 and done.stderr == "torchcaps: No space left on device.\n"


@pytest.mark.parametrize("error", [
    MemoryError(), RuntimeError("[enforce fail at x.cpp:1] can't allocate memory")
])  # fmt: skip
def test_too_little_memory_is_a_sentence(error, monkeypatch, capsys):
    def fail(words):
        raise error

    monkeypatch.setattr("torchcaps.cli.commands.run_command", fail)
    assert main(["list"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("torchcaps: not enough memory.") and len(err.splitlines()) == 1
