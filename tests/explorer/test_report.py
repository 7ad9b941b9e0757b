"""Self-contained reports of one run, several runs, different runs and unfinished runs."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import TINY_CAPSNET
from torchcaps.analysis.plots import get_plot
from torchcaps.cli import main
from torchcaps.explorer.report import without_folders, write_report
from torchcaps.explorer.results import in_words
from torchcaps.metrics.reference import Reference
from torchcaps.models.registry import model_config
from torchcaps.training.evaluate import evaluate
from torchcaps.training.loop import start
from torchcaps.training.recipe import DataSpec
from torchcaps.training.run import Run
from torchcaps.training.setup import set_up
from torchcaps.training.state import Training
from torchcaps.training.tasks import Classify


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "run"
    words = ["--epochs", "1", "--batch-size", "500", "--model.channels", "4"]
    words += ["--model.num-types", "2", "--model.hidden", "8", "--metrics"]
    assert main(["train", "demo/capsnet", *words, "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def written(run, tmp_path_factory):
    """Its report, for tests that only read it."""
    return write_report([run], tmp_path_factory.mktemp("page") / "report.html")


def test_the_report_is_self_contained_and_complete(run, tmp_path):
    out = tmp_path / "report.html"
    assert main(["report", str(run), "--out", str(out)]) == 0
    text = out.read_text()
    assert not re.search(r'(src|href)="(?!data:|#)', text) and "http" not in re.sub(
        r'xmlns(:\w+)?="[^"]+"|"http[^"]+"', "", text
    )
    titles = ["Training", "Accuracy by class", "Worst mistakes", "Accuracy under rotation"]
    titles += ["Reliability", "Reconstructions", "Latent traversal", "Routing maps", "Results"]
    for title in (*titles, "Provenance"):
        assert f"<h2>{title}" in text
    contents = re.findall(r'<a href="#([\w-]+)"', text)
    assert len(contents) == 15 and set(contents) == set(re.findall(r'<section id="([\w-]+)"', text))
    assert re.search(r"CapsNet classifies [\d.]+ % of 500 test images of digits correctly", text)
    assert "currentColor" in text and "<svg" in text
    names = {p.stem for p in (run / "figures").glob("*.png")}
    assert {"training-loss", "training-parts", "classes", "mistakes", "where"} <= names
    section = text[text.index('<section id="units">') :].partition("</section>")[0]
    assert "The decoder learned nothing: its reconstructions explain 0 %" in section
    assert "data-drawing" not in section and "units" not in names


def test_the_report_states_what_to_compare_with(run, written):
    """The interval and the baselines, as `eval` prints them, and who wins."""
    found = evaluate(run)
    low, high = (100 * limit for limit in found["intervals_95"]["accuracy"])
    known = found["reference"]
    text = " ".join(written.read_text().split())
    accuracy = f"{100 * found['numbers']['accuracy']:.2f} %"
    assert f"correctly (95 % interval {low:.1f} to {high:.1f} %)." in text
    assert f"<td>{accuracy} ({low:.1f} to {high:.1f})</td>" in text
    assert f"scores {100 * known['majority_accuracy']:.2f} %." in text
    names = ["majority class", "nearest class mean", "softmax linear probe", "MLP"]
    assert [one["name"] for one in known["baselines"]] == names
    for one in known["baselines"]:
        low, high = (100 * limit for limit in one["interval_95"])
        title = one["name"] + (f", {one['on']}" if one["on"] else "")
        cell = f"{100 * one['accuracy']:.2f} % ({low:.1f} to {high:.1f})"
        assert f"<th>{title}</th><td>–</td> <td>{cell}</td>" in text
    verdict = Reference.from_dict(known).verdict("CapsNet", found["numbers"]["accuracy"])
    assert verdict in text and "CapsNet loses: " in verdict


@pytest.mark.parametrize("width", [1200, 400])
def test_the_report_draws_every_figure_without_console_messages(width, written, browser):
    context = browser.new_context(viewport={"width": width, "height": 800}, accept_downloads=True)
    page, messages, urls, saved = context.new_page(), [], [], []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: urls.append(request.url))
    page.on("download", lambda download: saved.append(download))
    page.goto(f"file://{written}")
    page.wait_for_selector("[data-drawn]")
    count = page.locator("[data-drawing]").count()
    assert count > 10 and page.locator("[data-drawing]:has(svg, canvas)").count() >= count - 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("#training button").first.click()
    page.wait_for_timeout(500)
    assert len(saved) == 2  # SVG and PNG
    page.locator("#classes summary").first.click()
    assert page.locator("#classes td").count() >= 10
    assert not messages and all(url.startswith(("file:", "data:", "blob:")) for url in urls)
    context.close()


def test_custom_matplotlib_plots_are_shown(run, tmp_path, monkeypatch):
    from torchcaps.analysis import plots
    from torchcaps.analysis.matplotlib_figures import styled_plot

    class Own(plots.Plot):
        name, title, description, order = "own", "One's own", "A line.", 5

        def compute(self, model, data):
            return {"y": np.array([1.0, 2.0])}

        def figure(self, arrays):
            heights = next(iter(arrays.values()))["y"]
            return styled_plot({"a": ([0, 1], heights, {})}, "x", "own label")

    monkeypatch.setitem(plots.PLOTS, "own", Own())
    text = write_report([run], tmp_path / "x.html").read_text()
    section = text[text.index('<section id="own"') :]
    section = section[: section.index("</section>")]
    assert "own label" in section and "<svg" in section and "data-drawing" not in section


def test_figures_without_javascript(written, browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"file://{written}")
    assert page.locator("#training svg").first.is_visible()
    context.close()


def test_ids_are_unique(written):
    text = written.read_text()
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids)) > 10


@pytest.fixture
def photos(tmp_path):
    """A folder of noise in color, four classes, with names that a page must wrap or escape."""
    for number in range(80):
        folder = tmp_path / "secret/photos" / f"class {number % 4}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(0, 255, (24, 20, 3), dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(folder / f"photo <b> {number}.png")
    return tmp_path / "secret/photos"


def photo_run(recipe, photos, out, name="convnet-avg-small", **model):
    fields = {"epochs": 1, "batch_size": 20, "data": DataSpec(name=f"folder:{photos},size=20")}
    task = Classify(loss="cross_entropy")
    return start(
        replace(recipe, **fields, row=name, model=model_config(name, **model), task=task), out
    ).folder


def test_reports_of_different_runs(run, tiny_recipe, photos, tmp_path):
    """Runs with different data, image size, task and model in one report."""
    words = {"channels": (4, 4), "kernel_size": 5}
    other = photo_run(tiny_recipe, photos, tmp_path / "other", **words)
    text = write_report([run, other], tmp_path / "both.html").read_text()
    assert "Differences between the runs" in text and "accuracy, photos" in text
    missing = "Not shown for convnet-avg-small: It needs a decoder that draws from capsules."
    assert missing in text
    assert str(tmp_path) not in text and "secret" not in text
    assert "For photographs also train convnet-modern" in text


def test_mistakes_name_their_files(tiny_recipe, photos, tmp_path, capsys, monkeypatch):
    """In the report with its figure, and in what `eval` prints."""
    monkeypatch.setattr("torchcaps.explorer.report.report_plots", lambda: [get_plot("mistakes")])
    words = {"channels": (4, 4), "kernel_size": 5}
    folder = photo_run(tiny_recipe, photos, tmp_path / "run", **words)
    found = evaluate(folder)
    first = found["mistakes"][0]["file"]
    assert re.fullmatch(r"class \d/photo <b> \d+\.png", first)
    label = found["mistakes"][0]["label"]
    assert first.startswith(label) and (photos / first).is_file()
    text = write_report([folder]).read_text()
    assert first.replace("<", "\\u003c") in text and "photo <b>" not in text
    assert main(["eval", str(folder)]) == 0
    assert f"({first})" in capsys.readouterr().out


def test_photographs_are_compared_with_the_strongest_convnet(
    tiny_recipe, photos, tmp_path, monkeypatch
):
    monkeypatch.setattr("torchcaps.explorer.report.report_plots", lambda: [])
    words = {"channels": (4, 4), "kernel_size": 5}
    one = photo_run(tiny_recipe, photos, tmp_path / "one", **words)
    two = photo_run(tiny_recipe, photos, tmp_path / "two", "convnet-modern", channels=(4,) * 7)
    text = write_report([one, two], tmp_path / "both.html").read_text()
    sentence = r"convnet-avg-small is ([\d.]+ points (above|below)|level with) convnet-modern, the"
    assert re.search(sentence + " strongest ConvNet baseline here; their intervals overlap", text)
    assert "also train" not in text


def test_reports_of_unfinished_runs(tiny_recipe, tmp_path):
    resolved, context = set_up(replace(tiny_recipe, row="on its way"))
    training = Training(resolved, context, Run.create(resolved, tmp_path / "run"))
    training.step()
    training.save()
    text = write_report([tmp_path / "run"]).read_text()
    assert "on its way has not validated yet." in text and "stopped" in text
    watched = {"epoch": 0, "train_loss": 2.0, "val_accuracy": 0.3, "val_knn_accuracy": 0.4321}
    training.run.log(watched)
    training.run.log({"epoch": 1, "train_loss": 1.0, "val_accuracy": 0.5678})
    text = write_report([tmp_path / "run"]).read_text()
    assert "<td>56.78 %</td><td>43.21 %</td>" in text, "what is watched now and then is not shown"


def test_class_names_are_escaped(tiny_recipe, tmp_path):
    for number in range(80):
        folder = tmp_path / "photos" / ("<script>alert(1)<" if number % 2 else "猫 & 犬")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = torch.randint(0, 255, (28, 28), dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(folder / f"{number}.png")
    recipe = replace(
        tiny_recipe, epochs=1, batch_size=20, row="<b>bold</b>",
        data=DataSpec(name=f"folder:{tmp_path}/photos,size=28,mode=L"),
        model=model_config("capsnet", **TINY_CAPSNET),
    )  # fmt: skip
    text = write_report([start(recipe, tmp_path / "run").folder]).read_text()
    assert "<script>" not in text and "<b>" not in text and "&lt;b&gt;bold" in text
    assert "猫" in text


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("digits", "digits"),
        ("folder:/home/me/photos,size=64", "photos"),
        ("rotated:folder:~/me/photos,degrees=30", "rotated of photos (degrees 30)"),
        ("affnist-like:mnist,copies=4,shift=8", "affnist-like of mnist (shift 8)"),
    ],
)
def test_data_set_names_are_readable(spec, words):
    assert in_words(spec) == words


def test_commands_hide_folders():
    command = without_folders(
        "torchcaps train a/b --data folder:/home/me/photos,size=64 --out ~/x/y"
    )
    assert command == "torchcaps train a/b --data folder:…/photos,size=64 --out …/y"


def test_seeds_of_one_recipe_share_a_row(tiny_recipe, tmp_path):
    runs = [
        start(replace(tiny_recipe, seed=s, epochs=1), tmp_path / str(s)).folder for s in range(2)
    ]
    text = write_report(runs, tmp_path / "both.html").read_text()
    assert "tiny, 2 seeds" in text and re.search(r"<td>[\d.]+ ± [\d.]+ %</td>", text)
