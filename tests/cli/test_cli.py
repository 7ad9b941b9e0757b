"""The command line as a person uses it: words in, text and an exit code out."""

import json
import re

import pytest

from torchcaps.cli import main
from torchcaps.experiments import get_table

TINY = [
    "--epochs", "1", "--batch-size", "500", "--model.channels", "4", "--model.num-types", "2",
    "--model.hidden", "8", "--evaluate",
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
    for word in ("capsnet", "affnist-like", "robustness/table1/capsnet", "folder"):
        assert word in text
    assert main(["list", "models", "--json"]) == 0
    assert "convnet-avg" in json.loads(capsys.readouterr().out)["models"]


def test_help_of_everything(capsys):
    assert main([]) == 0 and main(["--help"]) == 0
    text = said(capsys)
    from torchcaps.cli.commands import COMMANDS

    for command in COMMANDS:
        assert command in text
        assert main([command, "--help"]) == 0
    assert main(["train", "demo/capsnet", "--help"]) == 0
    assert "--model.routing" in said(capsys)


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["tabel"], 2, "Did you mean 'table'"),
        (["train", "demo/capsnt"], 1, "Did you mean 'demo/capsnet'"),
        (["train", "demo/capsnet", "--optimser.lr", "1"], 2, "Did you mean --optimiser.lr"),
        (["train", "demo/capsnet", "--epochs", "many"], 2, "--epochs"),
        (["train", "demo/capsnet", "--model.routing", "em"], 2, "invalid choice"),
        (["train", "demo/capsnet", "--data.name", "nothing"], 1, "no data set 'nothing'"),
        (["train", "demo/capsnet", "--batch-size", "0"], 1, "at least 1"),
        (["train", "demo/capsnet", "--data-root=/x", "--data.name", "nothing"], 1, "no data set"),
        (["resume", "/no/run"], 1, "not a run"),
        (["eval", "/no/run"], 1, "not a run"),
        (["report"], 1, "at least one run"),
        (["report", "/no/run"], 1, "not a run"),
        (["table", "robustnes"], 1, "Did you mean 'robustness'"),
        (["table", "robustness", "tabel1"], 1, "Did you mean 'table1'"),
        (["tour", "capsnet", "nothing"], 1, "no data set"),
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
    assert json.loads(capsys.readouterr().out)["run"] == str(run)


def test_eval_on_other_data(run, capsys):
    assert main(["eval", str(run), "--data", "rotated:digits,degrees=20", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["n"] == 500 and 0 <= result["numbers"]["accuracy"] <= 1
    assert main(["eval", str(run)]) == 0
    assert main(["eval", str(run), "--data", "translated:digits"]) == 1
    assert "the model takes (1, 28, 28)" in capsys.readouterr().err


def test_report_is_one_self_contained_file(run, tmp_path, capsys):
    out = tmp_path / "report.html"
    assert main(["report", str(run), "--out", str(out)]) == 0
    text = out.read_text()
    assert 'src="data:image/png' in text
    assert not re.search(r'(src|href)="(?!data:)', text)
    titles = ["Training", "Accuracy against rotation", "Reconstructions", "What each unit draws"]
    for title in (*titles, "Routing of one image", "Where the numbers come from"):
        assert f"<h2>{title}" in text
    assert len(list((run / "figures").glob("*.png"))) == 5


def test_tour_names_files_lines_shapes_and_letters(capsys):
    assert main(["tour", "capsnet", "digits", "--json"]) == 0
    steps = json.loads(capsys.readouterr().out)
    shapes = {s["what"].split(":")[0]: (s["shape"], s["letters"]) for s in steps}
    assert shapes["primary"] == ([1, 6, 6, 32, 8], "[B,H,W,I,D]")
    assert shapes["output.coupling"] == ([1, 1152, 10], "[B,I,J]")
    assert all(re.match(r"torchcaps/[\w/]+\.py:\d+$", s["where"]) for s in steps)
    assert any("dynamic_routing" in s["what"] for s in steps)
    assert main(["tour", "convnet-avg"]) == 0


def test_data_show_draws_a_sheet(tmp_path, capsys):
    out = tmp_path / "sheet.png"
    assert main(["data", "show", "multimnist:digits", "--out", str(out), "--json"]) == 0
    assert out.read_bytes()[:4] == b"\x89PNG"
    assert json.loads(capsys.readouterr().out)["image"] == [1, 36, 36]
    assert main(["data", "check", "digits"]) == 0


def test_a_wide_table_is_readable_in_a_terminal(capsys):
    assert main(["table", "robustness", "table5"]) == 0
    shown = capsys.readouterr().out
    assert "ConvNet-CR-SF" in shown and "0.3192" in shown and "…" not in shown


def test_no_number_of_a_table_breaks_in_a_terminal_of_80(capsys, tmp_path):
    columns = get_table("mcae", "table1").columns
    fields = {"table": "table1", "split": "test", "metric": "accuracy", "protocol": "modified"}
    fields["recipe"] = "any"
    written = [
        json.dumps({**fields, "row": row, "data": c.data[0], "seed": seed, "value": value})
        for row in ("MCAE", "MCAE (no pretraining)")
        for c in columns.values()
        for seed, value in enumerate((0.81, 0.83))
    ]
    (tmp_path / "mcae.jsonl").write_text("\n".join(written))
    assert main(["table", "mcae", "table1", "--results", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.count("82.00") for line in lines) == 2 * len(columns)
    assert sum(line.count("1.41") for line in lines) == 2 * len(columns)
    assert any("pretraining)" in line for line in lines)
    (tmp_path / "mcae.jsonl").write_text("\n".join(x for x in written if '"seed": 0' in x))
    assert main(["table", "mcae", "best", "--results", str(tmp_path)]) == 0
    assert "│ 81.00 (1) " in capsys.readouterr().out  # one run has no spread and is no best


def test_table_json(capsys):
    assert main(["table", "robustness", "table1", "--json"]) == 0
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
    }
    assert all(set(c) == keys for c in cells)
    cell = next(c for c in cells if (c["row"], c["column"]) == ("ConvNet-Avg", "AffNIST"))
    assert cell["paper_value"] == 94.11
    assert main(["table", "robustness"]) == 0
    assert "ConvNet-Avg" in said(capsys)


def test_version(capsys):
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["torchcaps"]
    assert main(["--version"]) == 0


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_the_recipes(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "demo/capsnet" in capsys.readouterr().out


def test_a_changed_recipe_is_marked_as_such():
    from dataclasses import replace

    from torchcaps.cli.commands import marked
    from torchcaps.experiments import get_recipe

    original = get_recipe("robustness/table1/capsnet")
    free = replace(original, seed=3, record=True, data=replace(original.data, root="elsewhere"))
    assert marked(free, original) == free
    assert marked(replace(original, epochs=1), original).protocol == "modified"


def test_progress_goes_to_stderr_and_json_to_stdout(tmp_path, capsys):
    words = ["train", "demo/capsnet", *TINY, "--out", str(tmp_path / "run"), "--json"]
    assert main(words) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["parameters"] and "epoch 1/1" in said.err
