"""Evaluate a trained model: the numbers of its task, class by class, and metrics by name.

Evaluation is in float32 (`hardware.evaluation_precision`), so the record of a run and a later
evaluation agree to the bit.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torchcaps.data import Dataset, Split, as_dataset
from torchcaps.data.dataset import named_as, whole
from torchcaps.data.registry import shared_loads
from torchcaps.data.value_range import as_text
from torchcaps.errors import TorchcapsError, some_of
from torchcaps.metrics.base import ProgressFn, evaluate_all, prepare
from torchcaps.metrics.confusion import summary
from torchcaps.metrics.reference import Reference, reference, with_intervals
from torchcaps.models import Model
from torchcaps.training.defaults import defaults
from torchcaps.training.hardware import best_device, evaluation_precision, on_device
from torchcaps.training.load import data_of, folder_of, in_range, load, other_data, other_files
from torchcaps.training.provenance import environment
from torchcaps.training.recipe import Recipe, from_dict
from torchcaps.training.run import Run
from torchcaps.training.setup import check_sizes
from torchcaps.training.task import Task, make_task

SplitName = Literal["auto", "test", "val", "train", "all"]
"""A split to evaluate; auto: test, or every image of new data without splits."""


class Trained(NamedTuple):
    """A trained model and what is known of its training."""

    name: str
    task: Task
    recipe: Recipe
    run: Run | None

    @property
    def model(self) -> Model:
        return self.task.model


def open_trained(source: Run | Model | str | Path, device: str = "auto") -> Trained:
    """A run, a saved model, a pretrained model by its name, or a model instance, to evaluate."""
    run = source if isinstance(source, Run) else None
    if isinstance(source, str | Path) and (Path(source) / "recipe.json").exists():
        run = Run.open(source)
    if run is not None:
        run.record()  # raises unless the run is finished
        model, recipe, name = load(run.folder), run.recipe(), str(run.folder)
    else:
        model = source if isinstance(source, Model) else load(str(source))
        name = model.config.family if isinstance(source, Model) else str(source)
        record = model.record or {}
        recipe = from_dict(record["recipe"]) if "recipe" in record else _recipe_of(model)
    task = on_device(make_task(model, recipe.task), best_device(device))
    return Trained(name, task.eval(), recipe, run)


def _recipe_of(model: Model) -> Recipe:
    """A recipe for a model that was trained elsewhere: its data is unknown."""
    task = defaults("", model.config, labelled=True).task
    recipe = Recipe(name=model.config.family, model=model.config, task=task)
    return replace(recipe, data=replace(recipe.data, name=""))


def task_results(task: Task, name: str, data: Dataset, split: str) -> list[dict[str, Any]]:
    """The numbers of a task on one split, as lines of a record."""
    rows: Split = getattr(data, split)
    return [
        {"data": name, "split": split, "metric": metric, "value": value, "n": len(rows)}
        for metric, value in task.evaluate(rows).items()
    ]


def run_data(run: Run, root: str | Path | None = None) -> Dataset:
    """The data set of a run; one from memory only as long as the run is open, or given again."""
    recipe = run.recipe()
    if recipe.data.name == "memory":
        if run.data is None:
            raise TorchcapsError(
                f"{run.folder} was trained on data in memory. Pass it again: data=…"
            )
        return run.data
    return data_of(recipe.data, root, label_seed=recipe.seed)


def evaluate(
    model: Run | Model | str | Path,
    data: Any = "",
    *,
    split: SplitName = "auto",
    metrics: Sequence[str] = (),
    data_root: str | Path | None = None,
    device: str = "auto",
    progress: ProgressFn | None = None,
) -> dict[str, Any]:
    """Evaluate the chosen weights of a run, or any trained model, on one split of a data set.

    Classes are matched by name.

    model: a run, its folder, a saved model, a pretrained model's name, or a model instance
    data: a data set by name, or whatever `fit` takes; default: the run's own
    split: test, val, train, or all: every image of the set; auto: test, or all of a folder or
    arrays without splits that the model was not trained on
    metrics: metrics by name, each with a data set and options of its own if it needs them
    Returns `numbers` (by metric), `n` images, `intervals_95` of shares of images (Wilson), and for
    single labels `reference` (the baselines on the same images), `classes`, `confusion` and
    `mistakes`; `results` has a line for each of `metrics`.

    >>> result = torchcaps.evaluate("convnet-avg-small.digits", "digits")
    >>> sorted(result["numbers"])
    ['accuracy', 'loss']
    """
    trained = open_trained(model, device)
    recipe, task = trained.recipe, trained.task
    dataset, name = _dataset(trained, data, data_root)
    check_sizes(trained.model, replace(dataset, classes=()))
    labelled = type(task).needs_labels
    if labelled and not dataset.classes:
        raise TorchcapsError(f"{name} has no labels. To classify its images: torchcaps predict.")
    if labelled and trained.model.class_names:
        dataset = named_as(dataset, trained.model.class_names)
    if split == "auto":
        split = "all" if _all_new(trained, dataset, name) else "test"
    if split == "train" and dataset.render is not None:
        raise TorchcapsError(
            f"{name}: its training images are generated anew in every epoch; evaluate on val or "
            "test."
        )
    rows: Split = whole(dataset) if split == "all" else getattr(dataset, split)
    if not len(rows):
        raise TorchcapsError(f"{name} has no images in its split {split!r}.")
    rows = rows.to(next(trained.model.parameters()).device)
    with evaluation_precision(recipe.hardware):
        numbers = task.evaluate(rows)
        details = {}
        if labelled and rows.labels.ndim == 1 and "logits" in trained.model.provides:
            details = summary(trained.model, rows, dataset)
            own = dataset if name == recipe.data.name else _own_data(trained, data_root)
            if own is dataset and split in ("train", "all"):
                own = None  # a regression is not scored on images that it was fitted on
            if known := reference(own, rows, dataset.classes, trained.model):
                details["reference"] = known.as_dict()
    facts = {"run": trained.name, "recipe": recipe.name, "seed": recipe.seed, "data": name}
    if notes := list(_notes(trained, dataset, name, details)):
        facts["note"] = " ".join(notes)
    results = [
        line
        for record in _metric_records(trained, metrics, dataset, name, data_root, "", progress)
        for line in record["results"]
    ]
    intervals = _intervals(numbers, int((rows.labels.reshape(len(rows), -1)[:, 0] >= 0).sum()))
    numbers |= {line["metric"]: line["value"] for line in results if line["data"] == name}
    more = {"results": with_intervals(results)} if metrics else {}
    facts |= {"split": split, "n": len(rows), "numbers": numbers, "intervals_95": intervals}
    return {**facts, **details, **more}


def _intervals(numbers: dict[str, float], count: int) -> dict[str, list[float]]:
    """Wilson's interval of each number that is a share of `count` images."""
    lines = ({"metric": name, "value": value, "n": count} for name, value in numbers.items())
    with_bounds = with_intervals(lines)
    return {line["metric"]: line["interval_95"] for line in with_bounds if "interval_95" in line}


def _own_data(trained: Trained, root: str | Path | None) -> Dataset | None:
    """The data that a model was trained on, with the labels as the model numbers its classes; None
    if it is not here.
    """
    recipe = trained.recipe
    if not trained.run and not recipe.data.name:
        return None
    try:
        data = run_data(trained.run, root) if trained.run else data_of(recipe.data, root)
        return named_as(data, trained.model.class_names) if trained.model.class_names else data
    except TorchcapsError:
        return None


def run_reference(run: Run) -> Reference | None:
    """Reference accuracies on the test split of a run's data; None if the data is not here, or if
    the run has no accuracy of its own.
    """
    if run.accuracy is None:
        return None
    try:
        data = run_data(run)
    except TorchcapsError:
        return None
    return reference(data, data.test, data.classes, run.model)


def _all_new(trained: Trained, data: Dataset, name: str) -> bool:
    """True if all images of a data set are test images: they came without splits, and the model did
    not learn from them.
    """
    own = trained.recipe.data.name
    if not data.unsplit or folder_of(name) == folder_of(own) != "" or name == own != "memory":
        return False
    known = trained.run.start() if trained.run else trained.model.record or {}
    return known.get("files", "") != data.files


def _notes(trained: Trained, data: Dataset, name: str, details: dict[str, Any]) -> Iterator[str]:
    """Remarks on the numbers of an evaluation."""
    own = name == trained.recipe.data.name != "memory"
    if trained.run and own and other_files(trained.run.start(), data):
        yield (
            f"{name} has other files than when the run began: the run may have learned from some "
            "of these images."
        )
    if data.value_range and data.value_range != trained.model.value_range:
        known = trained.model.value_range
        yield (
            f"{name} has the range {as_text(data.value_range)}; the model was trained with "
            f"{as_text(known) if known else 'images of 8 bits'}."
        )
    if missing := [c["name"] for c in details.get("classes", ()) if not c["n"]]:
        yield f"No images of: {some_of(missing)}."


def _dataset(trained: Trained, data: Any, root: str | Path | None) -> tuple[Dataset, str]:
    """The data set to evaluate on, and its name."""
    recipe = trained.recipe
    value_range = trained.model.value_range
    if not isinstance(data, str):
        dataset = as_dataset(data, value_range=value_range, seed=recipe.data.seed)
        return dataset, dataset.name
    if not data and trained.run is not None:
        return run_data(trained.run, root), recipe.data.name
    if not data and not recipe.data.name:
        raise TorchcapsError(f"{trained.name} has no data set of its own: give one (data=…).")
    name = data or recipe.data.name
    spec = other_data(recipe.data, name)
    spec = replace(spec, name=in_range(name, value_range))
    return data_of(spec, root, label_seed=recipe.seed), name


def evaluate_metrics(
    source: Run | str | Path,
    metrics: Sequence[str],
    data_root: str | Path | None = None,
    command: str = "",
    progress: ProgressFn | None = None,
    data: Any = "",
) -> Iterator[dict[str, Any]]:
    """Metrics of a trained model: for each, as soon as it is computed, a record for the results.

    command: the command that gives the numbers again, if it is not this process's own. data: the
    data set of metrics that name none; default: the run's own
    """
    trained = open_trained(source)
    dataset, name = _dataset(trained, data, data_root)
    yield from _metric_records(trained, metrics, dataset, name, data_root, command, progress)


def _metric_records(
    trained: Trained,
    metrics: Sequence[str],
    dataset: Dataset,
    name: str,
    data_root: str | Path | None,
    command: str,
    progress: ProgressFn | None,
) -> Iterator[dict[str, Any]]:
    if not metrics:
        return
    recipe, run = trained.recipe, trained.run
    memory = (dataset, recipe.data.seed) if name == "memory" else None
    with shared_loads(memory) if memory else nullcontext():
        prepared = prepare(metrics, dataset, name, data_root or recipe.data.root or None)
    for metric in prepared:
        metric.check(trained.model)
    device = next(trained.model.parameters()).device
    record = {**(run.record() if run else {}), **environment(device, command)}
    own_data = run is not None and name == recipe.data.name
    cache = run.encodings if run is not None and own_data else None
    with evaluation_precision(recipe.hardware):
        for lines in evaluate_all(prepared, trained.model, device, cache, progress):
            yield {**record, "results": lines}
