"""Which classes a model knows, and where it is wrong and most sure of it."""

from typing import Any

import numpy as np
import torch

from torchcaps.analysis.accuracy import claims, confusion
from torchcaps.analysis.drawings import Bars, Matrix, Shots
from torchcaps.analysis.views import Arrays, View, evenly, lacks, register_view
from torchcaps.data import Dataset, Split
from torchcaps.models import CapsuleModel

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

    def drawing(self, found: dict[str, Arrays]) -> Bars:
        (arrays,) = found.values()
        order = np.argsort(arrays["accuracy"], kind="stable")
        order = order[arrays["count"][order] > 0][:SHOWN_CLASSES]
        names = [f"{arrays['classes'][k]} ({arrays['count'][k]})" for k in order]
        return Bars(names, 100 * arrays["accuracy"][order], "right, % (images)")


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

    def drawing(self, found: dict[str, Arrays]) -> Matrix:
        (arrays,) = found.values()
        table, classes = arrays["confusion"], arrays["classes"]
        wrong = table.sum(1) + table.sum(0) - 2 * table.diagonal()
        shown = np.sort(np.argsort(-wrong, kind="stable")[:SHOWN_CLASSES])
        share = 100 * table / table.sum(1, keepdims=True).clip(1)
        names = [str(name)[:16] for name in classes[shown]]
        part = share[np.ix_(shown, shown)]
        return Matrix(part, names, names, "said", "is", "per cent", most=100, written=True)


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

    def drawing(self, found: dict[str, Arrays]) -> Shots:
        (arrays,) = found.values()
        classes, captions = arrays["classes"], []
        for place in range(len(arrays["images"])):
            label, said = (classes[arrays[n][place]] for n in ("labels", "said"))
            captions.append(f"{label}, said {said}\n{100 * arrays['confidence'][place]:.0f} % sure")
        return Shots(arrays["images"], captions, "none among these images")
