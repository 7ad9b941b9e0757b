"""Public functions: one for every command that works on a model."""

from collections.abc import Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from torchcaps.data import Dataset, as_dataset
from torchcaps.data.registry import shared_loads
from torchcaps.data.value_range import Range, as_range
from torchcaps.errors import UsageError
from torchcaps.escape import Console
from torchcaps.models import Model
from torchcaps.models.predict import BATCH_SIZE, Prediction, image_batches
from torchcaps.outputs import check_file, check_folder
from torchcaps.parts import Parts, run_parts
from torchcaps.training import loop
from torchcaps.training.auto_recipe import auto_recipe, choose_model
from torchcaps.training.evaluate import evaluate
from torchcaps.training.load import data_of, load
from torchcaps.training.loop import Callback
from torchcaps.training.recipe import DataSpec, Recipe, with_fields
from torchcaps.training.registry import get_recipe, is_recipe
from torchcaps.training.run import Run, check_out
from torchcaps.training.setup import check_sizes
from torchcaps.training.tasks import Classify
from torchcaps.typed import check

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "embed", "evaluate", "explore", "export", "fit", "plot", "predict", "report", "resume",
]  # fmt: skip
Source = Run | Model | str | Path
"""A run, its folder, a saved model, a pretrained model's name, a hub id, or a model instance."""


def fit(
    model: Model | Recipe | str,
    data: Any = None,
    *,
    out: str | Path | None = None,
    test: Any = None,
    classes: Sequence[str] = (),
    value_range: tuple[float, float] | None = None,
    head: Literal["", "new"] = "",
    class_weights: Literal["balanced"] | Sequence[float] = (),
    balanced: bool = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    **fields: Any,
) -> Run:
    """Train a model on data and return its run.

        run = torchcaps.fit("capsnet-small", data="folder:photos", epochs=20)
        run = torchcaps.fit(model, data=(images, labels), optimizer={"lr": 1e-3})
        run = torchcaps.fit(torchcaps.Recipe(epochs=3))

    model: a model's name, built for the data's size and classes; "auto", a capsule head on
    pretrained features or the strongest baseline; an instance, trained in place; or a Recipe or its
    name
    data: a data set by name ("mnist", "folder:photos,size=64"), (images, labels), images alone, a
    dict of splits, an .npz file, a torch Dataset or DataLoader, a Hugging Face dataset
    out: the folder of the run; default: runs/<recipe>-s<seed>
    test, classes: the test split and the class names of data in memory
    value_range: its values that become black and white, for images of more than 8 bits and floats
    outside 0 to 1; of a folder: "folder:PATH,range=LO..HI"
    head: "new" replaces the class head of an instance for other classes
    class_weights: weights of the classes in the loss, or "balanced": inverse class frequencies
    balanced: sample every class equally often
    per_class: train on so many labeled images of each class
    callbacks: functions that get the metrics of each epoch; one that returns False ends training
    quiet: show no progress
    fields: fields of the recipe: epochs, batch_size, seed, augment, optimizer={"lr": …}, …
    Batch size, epochs and augmentation that are not given follow from the size of the data, as in
    `torchcaps train MODEL --data DATA`.

    >>> images, labels = torch.rand(60, 1, 28, 28), torch.arange(60) % 3
    >>> run = torchcaps.fit("convnet-avg-small", (images, labels), epochs=1, quiet=True)
    >>> run.status
    'finished'
    """
    folder = Path(out) if out else None
    check_out(folder)
    console = None if quiet else Console(stderr=True)
    seed = int(fields.get("seed", 0) if isinstance(model, Recipe) else 0)
    dataset, spec = _data(data, test, classes, value_range, seed)
    with shared_loads((dataset, spec.seed) if dataset is not None else None):
        spec = replace(spec, per_class=check(int, fields.get("per_class", 0), "per_class"))
        recipe, plan = _recipe(model, spec, dataset)
        recipe = with_fields(recipe, _grouped(fields, device, balanced))
        recipe = _weighted(recipe, class_weights)
        instance = model if isinstance(model, Model) else None
        if instance is not None:
            loaded = data_of(recipe.data, label_seed=recipe.seed)
            if head == "new" and instance.config.num_classes != loaded.num_classes:
                instance.reset_classifier(loaded.num_classes)
            check_sizes(instance, loaded)
            recipe = replace(recipe, model=instance.config)
        elif head:
            raise UsageError("head='new' is for a model instance; a name is built for the data.")
        if console and plan:
            console.print(plan(recipe), highlight=False, markup=False)
        run = loop.start(recipe, folder, console, model=instance, callbacks=callbacks)
    if instance is not None:
        chosen = run.model
        instance.load_state_dict(chosen.state_dict())
        instance.class_names, instance.record = chosen.class_names, chosen.record
        instance.temperature = chosen.temperature
        instance.value_range = chosen.value_range
    return Run(run.folder, dataset)


def _data(
    data: Any, test: Any, classes: Sequence[str], value_range: Range | None, seed: int
) -> tuple[Dataset | None, DataSpec]:
    """A data set in memory, if it is one, and the specification that a recipe holds."""
    if data is None or (isinstance(data, str) and not data.endswith(".npz")):
        if test is not None or classes:
            raise UsageError("test= and classes= are for data in memory; a named set has its own.")
        if value_range is not None:
            raise UsageError("value_range= is for data in memory; a folder: ,range=LO..HI.")
        return None, DataSpec(name=data or "")
    value_range = as_range(value_range) if value_range is not None else None
    dataset = as_dataset(data, test=test, classes=classes, value_range=value_range, seed=seed)
    return dataset, DataSpec(name="memory")


def _recipe(model: Any, spec: DataSpec, dataset: Dataset | None) -> tuple[Recipe, Any]:
    """The recipe for a model and data, and what describes it to the user."""
    if isinstance(model, str) and is_recipe(model):
        model = get_recipe(model)
    if isinstance(model, Recipe):
        data = replace(model.data, name=spec.name, root="") if spec.name else model.data
        return replace(model, data=data), None
    if not isinstance(model, Model | str):
        raise UsageError(
            f"model={type(model).__name__}: give a model's name, a torchcaps model or a Recipe."
        )
    if not spec.name:
        raise UsageError("data=: give a data set's name, (images, labels), or another data set.")
    remark = ""
    if isinstance(model, str):
        shape = dataset.image_shape if dataset is not None else None
        model, spec, remark = choose_model(model, spec, shape)
    loaded = dataset if dataset is not None and not spec.per_class else data_of(spec)
    recipe, plan = auto_recipe(model, loaded, spec)
    return recipe, lambda recipe: "\n".join(filter(None, (remark, plan(recipe))))


def _grouped(fields: dict[str, Any], device: str, balanced: bool) -> dict[str, Any]:
    """Arguments of `fit` as fields of a recipe and its groups."""
    grouped = dict(fields)
    if isinstance(grouped.get("data"), dict) or "data" in grouped:
        raise UsageError("data= is the data set itself; its options are augment= and balanced=.")
    names = {f.name for f in dataclass_fields(DataSpec)} - {"name", "seed"}
    group = {name: grouped.pop(name) for name in list(grouped) if name in names}
    if balanced:
        group["balanced"] = True
    if group:
        grouped["data"] = group
    if device != "auto":
        grouped["hardware"] = {**grouped.get("hardware", {}), "accelerator": device}
    return grouped


def _weighted(recipe: Recipe, weights: Any) -> Recipe:
    """The recipe with class weights in its loss."""
    if isinstance(weights, str) and weights != "balanced":
        raise UsageError(f"class_weights={weights!r}: give 'balanced' or a number for each class.")
    if not len(weights):
        return recipe
    if not isinstance(recipe.task, Classify):
        raise UsageError(f"class_weights= is for classification, not {recipe.task.kind!r}.")
    if weights == "balanced":
        dataset = data_of(recipe.data, label_seed=recipe.seed)
        counts = torch.bincount(dataset.train.labels.flatten(), minlength=dataset.num_classes)
        weights = (len(dataset.train) / (dataset.num_classes * counts.clamp(min=1))).tolist()
    weights = tuple(float(f"{w:.6g}") for w in weights)
    return replace(recipe, task=replace(recipe.task, class_weights=weights))


def resume(
    run: Run | str | Path,
    *,
    data: Any = None,
    value_range: tuple[float, float] | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    **fields: Any,
) -> Run:
    """Resume an interrupted run from its last checkpoint; a finished one is left as it is.

    data, value_range: the data set again, if it was in memory; a test split belongs to it, as
    {"train": …, "test": …}; fields: of optimizer and schedule, or of this machine, that replace
    those of the run

    >>> images, labels = torch.rand(60, 1, 28, 28), torch.arange(60) % 3
    >>> run = torchcaps.fit("convnet-avg-small", (images, labels), epochs=1, quiet=True)
    >>> torchcaps.resume(run).status
    'finished'
    """
    console = None if quiet else Console(stderr=True)
    opened = run if isinstance(run, Run) else Run.open(run)
    recipe = opened.recipe()
    dataset = opened.data
    if data is not None:
        dataset = as_dataset(data, value_range=value_range, seed=recipe.data.seed)
    if fields:
        recipe = with_fields(recipe, fields)
    return loop.resume(
        opened.folder, console, data=dataset, recipe=recipe if fields else None, callbacks=callbacks
    )


def _model(source: Source, device: str = "auto") -> Model:
    """The model of a source; one that is loaded here is put on the best device."""
    if isinstance(source, Model):
        return source
    from torchcaps.training.hardware import best_device

    model = source.model if isinstance(source, Run) else load(source)
    return model.to(best_device(device)).eval()


@overload
def predict(
    model: Source, images: Any, *, top_k: int = 5, batch_size: int = BATCH_SIZE
) -> list[list[Prediction]]: ...


@overload
def predict(
    model: Source, images: Any, *, out: str | Path, top_k: int = 5, batch_size: int = BATCH_SIZE,
    **parts: Any,
) -> Parts: ...  # fmt: skip


def predict(
    model: Source, images: Any, *, top_k: int = 5, batch_size: int = BATCH_SIZE,
    out: str | Path | None = None, **parts: Any,
) -> list[list[Prediction]] | Parts:  # fmt: skip
    """The most likely classes of each image, the most likely first.

    images: a file, a folder, a Pillow image, a list of these, a numpy array or a tensor [N,C,H,W],
    uint8 or float in [0,1]
    out: a folder for the results of a data set by name (folder:, packed:, hf:, webdataset:), in
    parts that a killed call keeps; parts: `part_size`, `on`, `at_once` and `force`

    >>> images = torchcaps.data.load("digits").test.images[:2]
    >>> len(torchcaps.predict("convnet-avg-small.digits", images))
    2
    """
    if out is not None:
        return _parts("predict", model, images, out, top_k=top_k, batch_size=batch_size, **parts)
    _no_parts(parts)
    return _model(model).predict(images, top_k, batch_size)


def _parts(kind: Any, model: Source, data: Any, out: str | Path, **options: Any) -> Parts:
    if isinstance(model, Model) or not isinstance(data, str | Path):
        raise UsageError("out= needs the model and the data by name: a run and 'packed:PATH'.")
    return run_parts(kind, model.folder if isinstance(model, Run) else model, str(data), out,
                     **options)  # fmt: skip


def _no_parts(options: dict[str, Any]) -> None:
    if options:
        raise UsageError(f"{', '.join(options)}: for results in parts; add out=FOLDER.")


@overload
def embed(
    model: Source, images: Any, *, features: str = "", batch_size: int = BATCH_SIZE
) -> Tensor: ...


@overload
def embed(
    model: Source, images: Any, *, out: str | Path, features: str = "",
    batch_size: int = BATCH_SIZE, **parts: Any,
) -> Parts: ...  # fmt: skip


@torch.no_grad()
def embed(
    model: Source, images: Any, *, features: str = "", batch_size: int = BATCH_SIZE,
    out: str | Path | None = None, **parts: Any,
) -> Tensor | Parts:  # fmt: skip
    """A vector for each image, from one of the model's representations. -> [N,D]

    images: as in `predict`; features: a name of `model.representations`; default: the first
    out, parts: as in `predict`, for data sets that do not fit in memory

    >>> images = torchcaps.data.load("digits").test.images[:2]
    >>> torchcaps.embed("capsnet-small.digits", images).shape
    torch.Size([2, 160])
    """
    if out is not None:
        options = {"features": features, "batch_size": batch_size, **parts}
        return _parts("embed", model, images, out, **options)
    _no_parts(parts)
    from torchcaps.metrics.probes.metric import representation

    encoder = _model(model)
    training = encoder.training
    encoder.eval()
    vectors = [
        representation(encoder, batch, features).cpu()
        for batch in image_batches(encoder, images, batch_size)
    ]
    encoder.train(training)
    return torch.cat(vectors)


def export(
    model: Source,
    out: str | Path,
    *,
    format: Literal["onnx", "torch", "web"] = "onnx",
    single_file: bool = False,
    runtime: str | Path | None = None,
    force: bool = False,
) -> Path:
    """Write a model as a file for other programs, and check that its outputs are the model's.

    format: ONNX, torch.export, or the explorer as a web page without a server; single_file,
    runtime: of the web page, see `torchcaps export --help`; force: replace what is at `out`

    >>> torchcaps.export("convnet-avg-small.digits", "digits.pt2", format="torch").name
    'digits.pt2'
    """
    folder = format == "web" and not single_file
    path = check_folder(out, force=force) if folder else check_file(out, force=force)
    if format == "web":
        from torchcaps.explorer.shelf import Shelf
        from torchcaps.explorer.web import export_web

        if isinstance(model, Model):
            raise UsageError("format='web' needs a run, a saved model or a pretrained model.")
        source = model.folder if isinstance(model, Run) else model
        page = Shelf([source], bundled=False)
        export_web(page, path, single_file, Path(runtime) if runtime else None, force=force)
        return path
    if single_file or runtime:
        raise UsageError("single_file and runtime are for format='web'.")
    from torchcaps.models.export import export as write

    write(_model(model, "cpu"), path, format)
    return path


def _several(runs: Any) -> list[Any]:
    """One run or several, as a list."""
    several = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    if not several:
        raise UsageError("Give at least one run.")
    return several


def report(
    runs: Run | str | Path | Sequence[Run | str | Path],
    *,
    out: str | Path | None = None,
    force: bool = False,
) -> Path:
    """Write one HTML file about one run or several, with every figure in it. -> its path

    out: the file; default: report.html in the first run's folder, where an older one is replaced.
    force: replace a file at `out`, too

    >>> images, labels = torch.rand(60, 1, 28, 28), torch.arange(60) % 3
    >>> run = torchcaps.fit("convnet-avg-small", (images, labels), epochs=1, quiet=True)
    >>> torchcaps.report(run).name
    'report.html'
    """
    path = check_file(out, force=force) if out else None
    from torchcaps.explorer import write_report

    return write_report(_several(runs), path)


def plot(
    name: str,
    runs: Any,
    *,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    force: bool = False,
    **options: Any,
) -> "Figure | dict[str, Figure]":
    """A figure of one run or several: `torchcaps.plot("traversal", run, image=3)`.

    name: a figure, from `torchcaps list figures`; runs: runs, folders, pretrained models' names;
    out: also save it as a file; force: replace a file at `out`; options: the figure's own
    Returns the figure, or figures by name if there are several.

    >>> figure = torchcaps.plot("reconstructions", "capsnet-small.digits")
    >>> len(figure.axes) > 0
    True
    """
    from torchcaps.analysis.render import render, save

    if out is not None:
        check_file(out, force=force)
    figures = render(name, _several(runs), data_root, **options)
    if out is not None:
        save(figures, Path(out), force=force)
    return next(iter(figures.values())) if len(figures) == 1 else figures


def explore(
    runs: Any = (), *, port: int | None = None, open: bool = True, data: str = "digits"
) -> None:
    """Open the explorer on trained models in a browser; Ctrl-C ends it.

    runs: runs, folders, pretrained models' names or hub ids; default: the finished runs in runs/.
    The pretrained models come after them. data: images for models that come without a run

    >>> torchcaps.explore("capsnet-small.digits")
    explorer: http://127.0.0.1:...  (... models; Ctrl-C ends it)
    """
    from torchcaps.explorer.serve import PORT, explore_models

    several = [runs] if isinstance(runs, Run | str | Path) else list(runs)
    sources = [run.folder if isinstance(run, Run) else run for run in several]
    explore_models(sources, PORT if port is None else port, open, data)
