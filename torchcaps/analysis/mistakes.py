"""Which classes a model knows, and where it is wrong and most sure of it."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from torchcaps.analysis.accuracy import claims, confusion
from torchcaps.analysis.figure import new_figure, show_grid
from torchcaps.analysis.views import Arrays, View, evenly, lacks, register_view
from torchcaps.data import Dataset, Split
from torchcaps.models import CapsuleModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN_CLASSES, SHOWN_MISTAKES = 20, 8
LOOKED_AT = 2000
"""Test images that the views look at."""


def part_of(data: Dataset) -> Split:
    return data.test[evenly(len(data.test), LOOKED_AT).to(data.test.images.device)]


def by_class(model: CapsuleModel, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy of each class (NaN without images), and how many images it has. -> [Y], [Y]"""
    table = confusion(*claims(model, split))
    count = table.sum(1)
    return np.where(count, table.diagonal() / count.clip(1), np.nan), count


def worst_mistakes(model: CapsuleModel, split: Split, count: int) -> Arrays:
    """Images that were classed wrong with the most confidence.

    -> images [N,C,H,W], labels, said, confidence [N]
    """
    claimed, labels = claims(model, split)
    confidence, said = claimed.max(-1)
    wrong = (said != labels).nonzero()[:, 0]
    rows = wrong[confidence[wrong].argsort(descending=True, stable=True)[:count]]
    labelled = split[split.labels >= 0]
    found = {"labels": labels[rows], "said": said[rows], "confidence": confidence[rows]}
    images = labelled.batch(rows).images
    return {n: t.cpu().numpy() for n, t in {"images": images, **found}.items()}


def summary(model: CapsuleModel, split: Split, classes: tuple[str, ...]) -> dict[str, Any]:
    """The same in plain values: every class, who is taken for whom, the worst mistakes."""
    claimed, labels = claims(model, split)
    table = confusion(claimed, labels)
    count = table.sum(1)
    worst = worst_mistakes(model, split, SHOWN_MISTAKES)
    return {
        "classes": [
            {"name": name, "n": int(n), "accuracy": float(right / n) if n else None}
            for name, n, right in zip(classes, count, table.diagonal(), strict=True)
        ],
        "confusion": table.tolist(),
        "mistakes": [
            {"label": classes[label], "said": classes[said], "confidence": float(sure)}
            for label, said, sure in zip(
                worst["labels"], worst["said"], worst["confidence"], strict=True
            )
        ],
    }


@register_view("classes")
class Classes(View):
    title = "Each class"
    place = 10
    words = (
        "The share of each class's test images that is classed right, the weakest classes first."
    )

    def applies(self, model: CapsuleModel, data: Dataset) -> str:
        return lacks(model, data, "logits", "labels")

    @torch.no_grad()
    def compute(self, model: CapsuleModel, data: Dataset) -> Arrays:
        accuracy, count = by_class(model, part_of(data))
        return {"accuracy": accuracy, "count": count, "classes": np.array(data.classes)}

    def draw(self, found: dict[str, Arrays]) -> "Figure":
        (arrays,) = found.values()
        order = np.argsort(arrays["accuracy"], kind="stable")
        order = order[arrays["count"][order] > 0][:SHOWN_CLASSES]
        figure = new_figure(4.6, 0.24 * len(order) + 0.8)
        axes = figure.subplots()
        names = [f"{arrays['classes'][k]} ({arrays['count'][k]})" for k in order]
        values = 100 * arrays["accuracy"][order]
        axes.barh(range(len(order)), values, height=0.7)
        for place, value in enumerate(values):
            inside = value > 15
            x, align = (value - 1, "right") if inside else (value + 1, "left")
            colour: dict[str, Any] = {"color": "white"} if inside else {}
            axes.text(x, place, f"{value:.1f}", va="center", ha=align, fontsize=8, **colour)
        axes.set_yticks(range(len(order)), names, fontsize=8)
        axes.set(xlim=(0, 100), ylim=(len(order) - 0.4, -0.6), xlabel="right, % (images)")
        return figure


@register_view("confusion")
class Confusion(View):
    title = "Who is taken for whom"
    place = 15
    words = "Test images of each class (row) by what the model says (column), in per cent."

    def applies(self, model: CapsuleModel, data: Dataset) -> str:
        return lacks(model, data, "logits", "labels")

    @torch.no_grad()
    def compute(self, model: CapsuleModel, data: Dataset) -> Arrays:
        table = confusion(*claims(model, part_of(data)))
        return {"confusion": table, "classes": np.array(data.classes)}

    def draw(self, found: dict[str, Arrays]) -> "Figure":
        (arrays,) = found.values()
        table, classes = arrays["confusion"], arrays["classes"]
        wrong = table.sum(1) + table.sum(0) - 2 * table.diagonal()
        shown = np.sort(np.argsort(-wrong, kind="stable")[:SHOWN_CLASSES])
        share = 100 * table / table.sum(1, keepdims=True).clip(1)
        side = 0.28 * len(shown) + 1.4
        figure = new_figure(side, side)
        axes = figure.subplots()
        axes.imshow(share[np.ix_(shown, shown)], cmap="Blues", vmin=0, vmax=100)
        for r, row in enumerate(shown):
            for c, column in enumerate(shown):
                value = share[row, column]
                if value >= 0.5:
                    colour = "white" if value > 50 else "black"
                    axes.text(c, r, f"{value:.0f}", ha="center", va="center", fontsize=7, c=colour)
        names = [str(name)[:16] for name in classes[shown]]
        axes.set_xticks(range(len(shown)), names, rotation=90, fontsize=8)
        axes.set_yticks(range(len(shown)), names, fontsize=8)
        axes.set(xlabel="said", ylabel="is")
        return figure


@register_view("mistakes")
class Mistakes(View):
    title = "Worst mistakes"
    place = 20
    words = "Test images that are classed wrong, those first of which the model is most sure."

    def applies(self, model: CapsuleModel, data: Dataset) -> str:
        return lacks(model, data, "logits", "labels")

    @torch.no_grad()
    def compute(self, model: CapsuleModel, data: Dataset) -> Arrays:
        found = worst_mistakes(model, part_of(data), SHOWN_MISTAKES)
        return {**found, "classes": np.array(data.classes)}

    def draw(self, found: dict[str, Arrays]) -> "Figure":
        (arrays,) = found.values()
        classes, count = arrays["classes"], len(arrays["images"])
        if not count:
            figure = new_figure(3, 0.5)
            figure.text(0.5, 0.5, "none among these images", ha="center", va="center")
            return figure
        columns = min(4, count)
        rows = -(-count // columns)
        figure = new_figure(1.15 * columns, 1.6 * rows)
        for place, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
            axes.set_axis_off()
            if place < count:
                show_grid(axes, arrays["images"][None, place : place + 1], [], None)
                label, said = (classes[arrays[n][place]] for n in ("labels", "said"))
                sure = arrays["confidence"][place]
                axes.set_title(f"{label}, said {said}\n{100 * sure:.0f} % sure", fontsize=7)
        return figure
