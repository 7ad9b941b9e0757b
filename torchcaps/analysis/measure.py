"""Numbers about a finished run beyond its accuracy, as lines of a record."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.analysis.attacks import attacked, detected
from torchcaps.analysis.calibration import calibration_error, claims
from torchcaps.analysis.compactness import AMOUNTS, from_uniform, variance_shares
from torchcaps.analysis.outliers import outlier_auroc
from torchcaps.data import Dataset, Split
from torchcaps.data import load as load_data
from torchcaps.errors import TorchcapsError, nearest
from torchcaps.models import CapsuleModel
from torchcaps.train.load import data_of, load
from torchcaps.train.record import append_results, environment
from torchcaps.train.run import Run

EPSILON = 0.1
NUM_ATTACKED = 1000
"""Images of the test split that are attacked, and of the validation split that set a threshold."""


@dataclass(frozen=True)
class Subject:
    """A finished run's chosen model, and its data on the same device."""

    model: CapsuleModel
    data: Dataset
    root: Path | None


def _compactness(subject: Subject) -> dict[str, float]:
    """How few units of a class capsule react to each of six factors: by image, and pooled."""
    found = {}
    for factor in AMOUNTS:
        batches = subject.data.test.batches(500)
        parts = [variance_shares(subject.model, b.images, factor, labels=b.labels) for b in batches]
        shares = np.concatenate(parts)
        found[f"compactness_{factor}"] = float(from_uniform(shares).mean())
        found[f"compactness_pooled_{factor}"] = float(from_uniform(shares.mean(0)))
    return found


def _calibration(subject: Subject) -> dict[str, float]:
    """Expected calibration error."""
    return {"ece": calibration_error(subject.model, subject.data.test)}


def _adversarial(subject: Subject) -> dict[str, float]:
    """Accuracy under FGSM and PGD, and PGD with the decoder as a detector."""
    model, found = subject.model, {}
    test, val = subject.data.test.batch(_first()), subject.data.val.batch(_first())
    for kind in ("fgsm", "pgd"):
        if kind == "pgd" and model.decoder is not None:
            result = detected(model, test.images, test.labels, val.images, kind, EPSILON)
            found |= {"pgd_accuracy": result.accuracy, "pgd_guarded": result.guarded}
            continue
        moved = attacked(model, test.images, test.labels, kind, EPSILON)
        with torch.no_grad():
            right = model(moved, reconstruct=False).logits.argmax(-1) == test.labels
        found[f"{kind}_accuracy"] = float(right.float().mean())
    return found


def _first() -> slice:
    return slice(0, NUM_ATTACKED)


def _outliers(subject: Subject) -> dict[str, float]:
    """AUROC against clothes (or digits, where the run's own images are clothes)."""
    name = subject.data.name
    other = "mnist" if "fashion" in name else "fashion-mnist"
    head, _, rest = name.partition(":")
    wanted = f"{head}:{other}" if rest else other
    outside = load_data(wanted, subject.root, seed=0)
    if outside.image_shape != subject.data.image_shape:
        raise TorchcapsError(f"{name}: there is no set of clothes or digits of its image size.")
    there: Split = outside.test.to(subject.data.test.images.device)
    found = {"ood_confidence": outlier_auroc(subject.model, subject.data.test, there, "confidence")}
    if subject.model.decoder is not None:
        found["ood_reconstruction"] = outlier_auroc(subject.model, subject.data.test, there)
    return found


def _mirrored(subject: Subject) -> dict[str, float]:
    """Accuracy of an image and its mirror together: the mean of what both claim."""
    split = subject.data.test
    claimed, labels = claims(subject.model, split)
    mirrored, _ = claims(subject.model, replace(split, images=split.images.flip(3)))
    right = (claimed + mirrored).argmax(-1) == labels
    return {"mirrored_accuracy": float(right.float().mean())}


MEASURES: dict[str, Callable[[Subject], dict[str, float]]] = {
    "compactness": _compactness,
    "calibration": _calibration,
    "adversarial": _adversarial,
    "outliers": _outliers,
    "mirrored": _mirrored,
}
METRICS = {
    **{f"compactness_{factor}": "compactness" for factor in AMOUNTS},
    **{f"compactness_pooled_{factor}": "compactness" for factor in AMOUNTS},
    "ece": "calibration",
    "fgsm_accuracy": "adversarial",
    "pgd_accuracy": "adversarial",
    "pgd_guarded": "adversarial",
    "ood_confidence": "outliers",
    "ood_reconstruction": "outliers",
    "mirrored_accuracy": "mirrored",
}
"""Which measure a recorded metric comes from."""


def measure(folder: Path, kinds: list[str], root: Path | None = None) -> list[dict[str, Any]]:
    """Measure a finished run's chosen model on its own test split."""
    for kind in kinds:
        if kind not in MEASURES:
            raise TorchcapsError(f"There is no measure {kind!r}. {nearest(kind, list(MEASURES))}")
    recipe = Run.open(folder).recipe()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    root = root or (Path(recipe.data.root) if recipe.data.root else None)
    data = data_of(recipe.data, root).to(device)
    if data.test.labels.ndim != 1 and set(kinds) - {"outliers"}:
        raise TorchcapsError(f"{recipe.data.name}: these measures need one label an image.")
    subject = Subject(load(folder).to(device).eval(), data, root)
    lines = []
    for kind in kinds:
        counted = min(len(data.test), NUM_ATTACKED) if kind == "adversarial" else len(data.test)
        lines += [
            {"data": recipe.data.name, "split": "test", "metric": metric, "value": v, "n": counted}
            for metric, v in MEASURES[kind](subject).items()
        ]
    return lines


def record_measured(folder: Path, lines: list[dict[str, Any]], results: Path) -> str:
    """Append them to results/<paper>.jsonl beside the run's own lines."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return append_results(
        {**Run(folder).record(), **environment(device), "results": lines}, results
    )
