"""The command line as a person uses it: words in, text and an exit code out."""

import ast
import dataclasses
import inspect
import json
import re
import subprocess
import sys
import textwrap

import pytest
from rich.console import Console

from torchcaps.cli import main
from torchcaps.cli.commands import COMMANDS, GROUPS, HIDDEN
from torchcaps.cli.sweep import SUBCOMMANDS
from torchcaps.models.hub import pretrained_names
from torchcaps.models.registry import list_models, models
from torchcaps.papers.tables import get_table
from torchcaps.training.recipe import DataSpec, HardwareSpec, OptimizerSpec, Recipe, ScheduleSpec
from torchcaps.training.registry import recipes
from torchcaps.training.tasks import TASKS

TINY = [
    "--epochs", "1", "--batch-size", "500", "--model.channels", "4", "--model.num-types", "2",
    "--model.hidden", "8", "--metrics",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "run"
    assert main(["train", "demo/capsnet", *TINY, "--out", str(folder)]) == 0
    return folder


def said(capsys):
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)


def test_list(capsys):
    assert main(["list"]) == 0
    text = said(capsys)
    for word in ("capsnet", "affnist-like", "linear", "traversal", "folder"):
        assert word in text
    assert main(["list", "models", "--json"]) == 0
    chosen = json.loads(capsys.readouterr().out)["models"]
    assert main(["list", "models", "--every", "--json"]) == 0
    every = json.loads(capsys.readouterr().out)["models"]
    assert "convnet-avg" in chosen and list(chosen) == list_models()
    assert set(chosen) < set(every) >= {m.name for m in models()}
    assert "constellation" in every
    assert main(["list", "--pretrained", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["models"]) == pretrained_names()
    assert main(["paper", "list", "robustness", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["recipes"]
    assert "robustness/table1/capsnet" in listed and all("robustness/" in name for name in listed)
    for kind, word in (("metrics", "linear"), ("routings", "em"), ("tasks", "masked")):
        assert main(["list", kind]) == 0
        assert word in capsys.readouterr().out


def test_list_never_cuts_a_name(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["paper", "list"]) == 0
    text = capsys.readouterr().out
    assert "…" not in text and all(re.search(rf"^{re.escape(n)} ", text, re.M) for n in recipes())


def test_list_of_runs_has_their_status(run, capsys, monkeypatch):
    monkeypatch.chdir(run.parent.parent)
    (run.parent.parent / "runs").symlink_to(run.parent)
    assert main(["runs", "list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    facts = row["run"], row["status"], row["name"], row["data"]
    assert facts == ("runs/run", "finished", "CapsNet, seed 0", "digits")
    assert 0 <= row["accuracy"] <= 1 and row["bytes"] > 1000
    for words in (["runs", "list"], ["runs"]):
        assert main(words) == 0
        text = said(capsys)
        assert "runs/run" in text and "finished" in text and f"{row['accuracy']:.4f}" in text


def test_the_catalog_is_what_is_registered():
    """In a process of its own: tests register things too."""
    code = (
        "from torchcaps.cli.catalog import FILE, text; raise SystemExit(FILE.read_text() != text())"
    )
    done = subprocess.run([sys.executable, "-c", code])
    assert done.returncode == 0, "make docs"


@pytest.mark.parametrize("words", [
    ["--help"], ["--version"], ["list"], ["completion", "bash"], [], ["sweep", "--help"],
])  # fmt: skip
def test_help_lists_and_completion_need_no_torch(words):
    code = "import sys; from torchcaps.cli import main; main(sys.argv[1:]); "
    code += "sys.exit(bool({'torch', 'optuna', 'ray', 'submitit'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_importing_torchcaps_imports_nothing_else():
    code = "import sys, torchcaps; dir(torchcaps); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    code = "import torchcaps as t; t.fit, t.load, t.data.load, t.create_model, t.Recipe, t.layers"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_help_of_everything(capsys):
    assert main([]) == 0 and main(["--help"]) == 0
    text = said(capsys)
    assert len(COMMANDS) <= 16 and len(text.splitlines()) <= 2 * 28  # printed twice
    for command in COMMANDS:
        assert command in text
        assert main([command, "--help"]) == 0
    for group, commands in GROUPS.items():
        capsys.readouterr()
        assert main([group, "--help"]) == 0
        text = said(capsys)
        assert all(re.search(rf"^  {command} ", text, re.M) for command in commands)
    assert main(["train", "demo/capsnet", "--help-all"]) == 0
    text = said(capsys)
    assert "--model.routing" in text and "--task.loss" in text and "mask-ratio" not in text
    assert main(["train", "mcae/pretrain", "--help-all"]) == 0
    text = said(capsys)
    assert "--task.mask-ratio" in text and "--task.loss" not in text


@pytest.mark.parametrize("name", ["demo/capsnet", "mcae/pretrain", "generative/best"])
def test_the_short_help_of_a_recipe_fits_a_screen(name, capsys):
    assert main(["train", name, "--help"]) == 0
    text = said(capsys)
    assert len(text.splitlines()) <= 40 and max(map(len, text.splitlines())) <= 80
    for option in ("--data", "--epochs", "--optimizer.lr", "--help-all"):
        assert option in text


def test_train_alone_says_what_to_type(capsys):
    assert main(["train"]) == 2
    error = capsys.readouterr().err
    assert "torchcaps train demo/capsnet" in error and len(error.splitlines()) == 2
    assert main(["train", "--help"]) == 0
    assert "torchcaps paper list" in capsys.readouterr().out


EVERY = {
    **{name: function for name, function in {**COMMANDS, **HIDDEN}.items() if name not in GROUPS},
    **{f"{g} {name}": function for g, group in GROUPS.items() for name, function in group.items()},
    **{f"sweep {name}": function for name, function in SUBCOMMANDS.items()},
}


@pytest.mark.parametrize("name", [n for n in EVERY if n not in ("train", "resume", "sweep")])
def test_every_option_has_a_sentence(name, capsys):
    """Of every argument of every command: its help begins with a capital and ends with a stop."""
    lines = inspect.getdoc(EVERY[name]).partition("Args:")[2].splitlines()
    documented = dict(line.strip().split(": ", 1) for line in lines if ": " in line)
    for parameter in inspect.signature(EVERY[name]).parameters:
        text = documented[parameter]
        assert text.endswith(".") and (text[0].isupper() or text.startswith(("get:", "`paper`"))), (
            text
        )
    assert main([*name.split(), "--help"]) == 0
    shown = said(capsys)
    assert "{None}" not in shown and "(default: None)" not in shown


@pytest.mark.parametrize(
    "kind",
    [Recipe, DataSpec, OptimizerSpec, ScheduleSpec, HardwareSpec,
     *(config for _, config in TASKS.values()),
     *{type(m.config): 0 for m in models()}],
    ids=lambda k: k.__name__,
)  # fmt: skip
def test_every_field_has_a_sentence_with_its_subject(kind):
    """The string below a field is its help."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    body = tree.body[0].body
    told = {}
    for field, text in zip(body, body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            told[field.target.id] = text.value.value
    for field in dataclasses.fields(kind):
        groups = ("data", "model", "task", "optimizer", "schedule", "hardware")
        if field.name in kind.__annotations__ and field.name not in ("_", *groups):
            words = told[field.name].strip()
            assert words.endswith((".", "…")), field.name
            assert not words.startswith(("Of ", "That ", "Whose ")), field.name


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["tran"], 2, "Did you mean 'train'"),
        (["paper", "tabel"], 2, "Did you mean 'table'"),
        (["train", "demo/capsnt"], 2, "Did you mean 'demo/capsnet'"),
        (["train", "--epochs", "3"], 2, "the recipe comes first"),
        (["train", "demo/capsnet", "--optimser.lr", "1"], 2, "Did you mean --optimizer.lr"),
        (["train", "demo/capsnet", "--epochs", "many"], 2, "--epochs"),
        (["train", "demo/capsnet", "--model.transform", "em"], 2, "invalid choice"),
        (["train", "demo/capsnet", "--model.routing", "rm"], 2, "routing 'rm'. Did you mean 'em'"),
        (["train", "demo/capsnet", "--task", "clasify"], 2, "Did you mean 'classify'"),
        (["train", "demo/capsnet", "--model", "capsnt"], 2, "Did you mean 'capsnet'"),
        (["train", "demo/capsnet", "--model.image-size", "64"], 2, "the data decides"),
        (["train", "capsnet-small"], 2, "--data folder:PATH"),
        (["train", "demo/capsnet", "--data.name", "nothing"], 2, "Unknown data set 'nothing'"),
        (["train", "demo/capsnet", "--batch-size", "0"], 1, "at least 1"),
        (["train", "demo/capsnet", "--data-root=/x", "--data.name", "no"], 2, "Unknown data set"),
        (["resume", "/no/run"], 1, "not a run"),
        (["eval", "/no/run"], 1, "not a run"),
        (["report"], 2, "at least one run"),
        (["report", "/no/run"], 1, "not a run"),
        (["paper", "table", "robustnes"], 2, "Did you mean 'robustness'"),
        (["paper", "table", "robustness", "tabel1"], 2, "Did you mean 'table1'"),
        (["tour", "capsnet", "nothing"], 2, "Unknown data set"),
        (["data", "look", "digits"], 2, "invalid choice"),
        (["train", "demo/capsnet", "--hardware.devices", "0"], 1, "cannot run"),
    ],
)  # fmt: skip
def test_errors_are_a_line_or_two_and_a_code(words, code, text, capsys):
    assert main(words) == code
    error = capsys.readouterr().err
    assert text in error and "Traceback" not in error
    assert len(error.strip().splitlines()) <= 2, error


def test_a_traceback_only_with_debug(capsys):
    with pytest.raises(Exception, match="not a run"):
        main(["resume", "/no/run", "--debug"])


def test_train_writes_a_run(run):
    names = {p.name for p in run.iterdir()}
    assert {"recipe.json", "record.json", "metrics.jsonl", "checkpoints", "model"} <= names
    assert json.loads((run / "record.json").read_text())["recipe"]["model"]["channels"] == 4


def test_resume_of_a_finished_run_shows_it(run, capsys):
    assert main(["resume", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["folder"] == str(run)


def test_eval_on_other_data(run, capsys):
    assert main(["eval", str(run), "--data", "rotated:digits,degrees=20", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["n"] == 500 and 0 <= result["numbers"]["accuracy"] <= 1
    assert main(["eval", str(run)]) == 0
    assert main(["eval", str(run), "--data", "translated:digits"]) == 1
    assert "The model takes images of 1x28x28" in capsys.readouterr().err


def tour_of(capsys, *words):
    assert main(["tour", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_tour_names_files_lines_shapes_and_letters(capsys):
    steps = tour_of(capsys, "capsnet", "digits")
    shapes = {s["what"].split(":")[0]: (s["shape"], s["letters"]) for s in steps}
    assert shapes["primary"] == ([1, 6, 6, 32, 8], "[B,H,W,I,D]")
    assert shapes["classes"] == ([1, 10, 16], "[B,J,E]")
    assert all(re.match(r"torchcaps/[\w/]+\.py:\d+$", s["where"]) for s in steps)
    assert any("dynamic_routing" in s["what"] for s in steps)
    assert main(["tour", "convnet-avg"]) == 0


@pytest.mark.parametrize(
    ("model", "walk"),
    [
        ("capsnet", "stem primary classes logits scores decoder"),
        ("inverted-resnet", "normalize backbone primary primary_norm layers.0 layers.1 layers.2 "
                            "head logits"),
        ("mcae", "normalize embed embed_norm backbone primary active layers.0 norms.0 layers.1 "
                 "norms.1 layers.2 norms.2 classes logits scores"),
    ],
)  # fmt: skip
def test_a_tour_is_a_walk_without_going_back(model, walk, capsys):
    """From the file to the drawing, every part once, in the order in which an image meets it."""
    steps = tour_of(capsys, model, "digits")
    names = [s["what"].split(":")[0] for s in steps if not s["what"].startswith("in it")]
    assert names[2:] == walk.split()
    assert steps[0]["what"].startswith("load") and "one image" in steps[1]["what"]
    if model == "inverted-resnet":
        (last,) = [s for s in steps if s["what"].startswith("layers.2")]
        assert last["what"].endswith("2 times")


def test_data_show_draws_a_sheet(tmp_path, capsys):
    out = tmp_path / "sheet.png"
    assert main(["data", "show", "multimnist:digits", "--out", str(out), "--json"]) == 0
    assert out.read_bytes()[:4] == b"\x89PNG"
    assert json.loads(capsys.readouterr().out)["image"] == [1, 36, 36]
    assert main(["data", "check", "digits"]) == 0


def test_a_wide_table_is_readable_in_a_terminal(capsys):
    assert main(["paper", "table", "robustness", "table5"]) == 0
    shown = capsys.readouterr().out
    assert "ConvNet-CR-SF" in shown and "0.3192" in shown and "…" not in shown


def test_no_number_of_a_table_breaks_in_a_terminal_of_80(capsys, tmp_path):
    columns = get_table("mcae", "table1").columns
    fields = {"table": "table1", "split": "test", "metric": "accuracy", "protocol": "modified"}
    fields |= {"recipe": "any", "date": "2026"}
    written = [
        json.dumps({**fields, "row": row, "data": c.data[0], "seed": seed, "value": value})
        for row in ("MCAE", "MCAE (no pretraining)")
        for c in columns.values()
        for seed, value in enumerate((0.81, 0.83))
    ]
    (tmp_path / "mcae.jsonl").write_text("\n".join(written))
    assert main(["paper", "table", "mcae", "table1", "--results", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.count("82.00") for line in lines) == 2 * len(columns)
    assert sum(line.count("1.41") for line in lines) == 2 * len(columns)
    assert any("pretraining)" in line for line in lines)
    (tmp_path / "mcae.jsonl").write_text("\n".join(x for x in written if '"seed": 0' in x))
    assert main(["paper", "table", "mcae", "best", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().out  # one run has no spread and is no best
    assert "81.00" in said and "(1)" in said and "±" not in said and "best 81" not in said


@pytest.mark.parametrize("room", [30, 80, 200])
def test_a_table_with_many_columns_comes_in_pieces_that_fit(room, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("torchcaps.cli.table_format.console", Console(width=room))
    monkeypatch.setattr("torchcaps.cli.paper.console", Console(width=room))
    columns = get_table("robustness", "turned").columns
    fields = {"table": "turned", "split": "test", "protocol": "modified", "recipe": "any"}
    written = [
        json.dumps({**fields, "row": "capsules", "data": c.data[0], "metric": c.metric, "date": "",
                    "seed": seed, "value": 0.81 + 0.02 * seed})
        for c in columns.values() for seed in range(2)
    ]  # fmt: skip
    (tmp_path / "robustness.jsonl").write_text("\n".join(written))
    assert main(["paper", "table", "robustness", "turned", "--results", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= room
    assert sum(line.count("82.00") for line in lines) == len(columns)
    assert (sum("┏" in line for line in lines) == 1) == (room == 200)


def test_table_json(capsys):
    assert main(["paper", "table", "robustness", "table1", "--json"]) == 0
    cells = json.loads(capsys.readouterr().out)
    keys = {
        "paper",
        "table",
        "row",
        "column",
        "protocol",
        "mean",
        "std",
        "n",
        "best",
        "paper_value",
        "repeated",
    }
    assert all(set(c) == keys for c in cells)
    cell = next(c for c in cells if (c["row"], c["column"]) == ("ConvNet-Avg", "affNIST"))
    assert cell["paper_value"] == 94.11
    assert main(["paper", "table", "robustness"]) == 0
    assert "ConvNet-Avg" in said(capsys)


def test_version(capsys):
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["torchcaps"]
    assert main(["--version"]) == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_recipes(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "demo/capsnet" in capsys.readouterr().out


def test_a_task_and_a_model_can_be_exchanged_whole(tmp_path, capsys):
    words = ["train", "demo/capsnet", *TINY, "--task", "reconstruct", "--out", str(tmp_path / "a")]
    assert main(words) == 0
    recipe = json.loads((tmp_path / "a/recipe.json").read_text())
    assert recipe["task"] == {"kind": "reconstruct"} and recipe["version"] == 3
    few = ["--epochs", "1", "--batch-size", "500", "--metrics"]
    words = [
        "train",
        "demo/capsnet",
        "--model=convnet-avg-small",
        "--model.channels",
        "4",
        "4",
        *few,
    ]
    assert main([*words, "--task.loss", "cross_entropy", "--out", str(tmp_path / "b")]) == 0
    assert json.loads((tmp_path / "b/recipe.json").read_text())["model"]["family"] == "convnet"


def test_markdown_is_made_of_cells(capsys):
    words = ["paper", "table", "robustness", "table1", "--markdown", "--columns", "affNIST"]
    assert main([*words, "--rows", "GE-CapsNet", "SCAE"]) == 0  # others' systems: no runs of ours
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0] == "| | affNIST | paper |" and len(lines) == 4
    assert lines[2].startswith("| GE-CapsNet |") and lines[3].endswith("| 92.21 |")
    assert main(["paper", "table", "robustness", "table1", "--columns", "afNIST"]) == 2
    assert "Did you mean 'affNIST'" in capsys.readouterr().err


def test_progress_goes_to_stderr_and_json_to_stdout(tmp_path, capsys):
    words = ["train", "demo/capsnet", *TINY, "--out", str(tmp_path / "run"), "--json"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["parameters"] and "epoch 1/1" in said.err
