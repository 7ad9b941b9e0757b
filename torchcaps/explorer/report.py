"""One self-contained HTML file about one run or several side by side."""

import base64
import html
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from torchcaps.analysis import (
    accuracy_under,
    draw_accuracy_under,
    draw_coupling,
    draw_curves,
    draw_traversal,
    reconstructions,
    routing_map,
    traverse,
)
from torchcaps.analysis.traverse import draw_reconstructions
from torchcaps.data import Dataset
from torchcaps.explorer.page import page
from torchcaps.models import CapsuleModel
from torchcaps.models.base import CHOSEN
from torchcaps.models.capsnet import CapsNet
from torchcaps.train.load import data_of, load
from torchcaps.train.run import Run, by_name


class _Section:
    """A heading, figures that are also kept as files, and what to see in them."""

    def __init__(self, title: str, words: str, figures: dict[str, Figure]):
        self.title, self.words, self.figures = title, words, figures

    def html(self) -> str:
        images = "".join(
            f"<figure><figcaption>{html.escape(name)}</figcaption>"
            f'<img alt="{html.escape(name)}: {html.escape(self.title)}" '
            f'src="data:image/png;base64,{_png(figure)}"></figure>'
            for name, figure in self.figures.items()
        )
        return f"<section><h2>{self.title}</h2><p>{self.words}</p>{images}</section>"


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=140)
    return base64.b64encode(buffer.getvalue()).decode()


def _accuracy_table(runs: dict[str, Run]) -> str:
    columns: list[str] = []
    rows = []
    for name, run in runs.items():
        record = run.record()
        cells = {
            r["data"]: r["value"]
            for r in record["results"]
            if r["split"] == "test" and r["metric"] == "accuracy"
        }
        columns += [c for c in cells if c not in columns]
        rows.append((name, record, cells))
    head = "".join(f"<th>{html.escape(c)}</th>" for c in columns)
    body = ""
    for name, record, cells in rows:
        values = "".join(
            f"<td>{100 * cells[c]:.2f}</td>" if c in cells else "<td>–</td>" for c in columns
        )
        body += f"<tr><th>{html.escape(name)}</th><td>{record['parameters']:,}</td>{values}</tr>"
    return f"<table><tr><th>model</th><th>parameters</th>{head}</tr>{body}</table>"


def _provenance(runs: dict[str, Run]) -> str:
    parts = []
    for name, run in runs.items():
        record: dict[str, Any] = run.record()
        facts = {
            "command": record["command"],
            "commit": record["commit"],
            "date": record["date"],
            "device": record["device"],
            "versions": ", ".join(f"{k} {v}" for k, v in record["versions"].items()),
            "seed": record["recipe"]["seed"],
            "epochs": record["epochs_trained"],
            f"epoch chosen on {CHOSEN[run.recipe().stop_on]}": record["chosen_epoch"] + 1,
            "training time": f"{record['seconds']} s",
            "data": f"{record['recipe']['data']['name']}. {record['data_note']}",
        }
        rows = "".join(
            f"<tr><th>{k}</th><td>{html.escape(str(v))}</td></tr>" for k, v in facts.items()
        )
        parts.append(f"<h3>{html.escape(name)}</h3><table>{rows}</table>")
    return "<section><h2>Where the numbers come from</h2>" + "".join(parts) + "</section>"


def _spread(total: int, count: int) -> torch.Tensor:
    """Rows evenly over a split, so that one sorted by class shows every class."""
    return torch.linspace(0, total - 1, min(count, total)).long()


def _sections(
    runs: dict[str, Run], models: dict[str, CapsuleModel], data: Dataset
) -> Iterator[_Section]:
    """One after the other, each with figures for the models that have such a thing."""
    yield _Section(
        "Training", "Loss and validation accuracy after each epoch.", {"curves": draw_curves(runs)}
    )
    test = data.test
    if test.labels.ndim == 1 and data.num_classes:
        part = test[_spread(len(test), 1000)]
        classify = [n for n, run in runs.items() if run.recipe().objective == "classify"]
        names = {n: accuracy_under(models[n], part, "rotation") for n in classify}
        words = (
            "Test images turned by a fixed angle; no model was trained on turned images unless its "
        )
        words += "recipe says so."
        if names:
            figure = draw_accuracy_under(names, "rotation")
            yield _Section("Accuracy against rotation", words, {"rotation": figure})
    drawing = {n: m for n, m in models.items() if m.decoder is not None}
    if drawing:
        batch = test.batch(_spread(len(test), 12))
        labels = batch.labels if batch.labels.ndim == 1 else batch.labels[:, 0]
        images = batch.images.cpu().numpy()
        figures = {
            n: draw_reconstructions(images, reconstructions(m, batch.images, labels))
            for n, m in drawing.items()
        }
        yield _Section(
            "Reconstructions", "Test images and what the decoder draws of them.", figures
        )
    moved = {n: m for n, m in drawing.items() if type(m).decode is not CapsuleModel.decode}
    if moved:
        few = test.batch(_spread(len(test), 12))
        image = few.images[len(few) // 3]
        figures = {n: draw_traversal(traverse(m, image)) for n, m in moved.items()}
        words = "Each row adds to one unit of the class capsule of one test image, and decodes."
        yield _Section("What each unit draws", words, figures)
    routed = {n: m for n, m in models.items() if isinstance(m, CapsNet) and m.routed}
    if routed:
        few = test.batch(_spread(len(test), 12))
        image = few.images[len(few) // 3]
        figures = {
            n: draw_coupling(image.cpu().numpy(), routing_map(m, image)[1], data.classes)
            for n, m in routed.items()
        }
        words = "Where each class capsule's input comes from: coupling times the length of the "
        words += "primary capsule, summed over types."
        yield _Section("Routing of one image", words, figures)


def write_report(folders: list[str | Path], out: Path | None = None) -> Path:
    """Figures into each run's folder as PNG, and one HTML file that needs nothing else."""
    runs = by_name(folders)
    opened = list(runs.values())
    models = {name: load(run.folder) for name, run in runs.items()}
    recipe = opened[0].recipe()
    data = data_of(recipe.data)
    sections = list(_sections(runs, models, data))
    for section in sections:
        for name, figure in section.figures.items():
            owner = runs.get(name, opened[0])
            owner.figures.mkdir(exist_ok=True)
            stem = section.title.lower().replace(" ", "-")
            figure.savefig(owner.figures / f"{stem}.png", dpi=140)
    path = out or opened[0].folder / "report.html"
    body = [f"<section><h2>Test accuracy, %</h2>{_accuracy_table(runs)}</section>"]
    body += [section.html() for section in sections] + [_provenance(runs)]
    title = " · ".join(runs)
    path.write_text(page(title, f"trained on {data.name}", "".join(body)), encoding="utf-8")
    return path
