"""Objects of a run, built anew from its recipe at every start."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from torchcaps.data import Augment, Dataset, Loader
from torchcaps.data.registry import shared_loads
from torchcaps.data.stream import StoredImages, default_threads
from torchcaps.errors import TorchcapsError
from torchcaps.metrics.base import PreparedMetric, prepare, read_metric
from torchcaps.models.base import SIZES, Model
from torchcaps.models.registry import MODELS, build, models
from torchcaps.models.size import check_size
from torchcaps.training.checkpoint import restore
from torchcaps.training.fixed_features import fixed_features
from torchcaps.training.hardware import make_fabric, on_device
from torchcaps.training.init_weights import init_weights, listed
from torchcaps.training.load import data_of, load
from torchcaps.training.optim import make_optimizer
from torchcaps.training.recipe import Recipe
from torchcaps.training.task import Task, make_task, task_class
from torchcaps.typed import check_bounds


@dataclass
class RunContext:
    fabric: Fabric
    task: Task
    module: Any
    """The task as the strategy wraps it."""
    optimizer: Any
    data: Dataset
    metrics: list[PreparedMetric]
    """Metrics of the final evaluation; prepared first, so that errors come before training."""
    watch: list[PreparedMetric]
    unlabelled: list[str]
    """Metrics that need labels, where the data has none."""
    loader: Loader
    init_report: str = ""
    """Weights that were initialized from another run."""


def build_task(recipe: Recipe) -> Task:
    return make_task(build(recipe.model), recipe.task)


def sizes_of(data: Dataset) -> dict[str, int]:
    """The fields of a model's configuration that the data decides."""
    channels, height, width = data.image_shape
    sizes = (channels, height, width if width != height else 0, max(1, data.num_classes))
    return dict(zip(SIZES, sizes, strict=True))


def with_data(recipe: Recipe, data: Dataset) -> Recipe:
    """The recipe with the model's input and output sizes taken from the data set."""
    if task_class(recipe.task).needs_labels and not data.num_classes:
        raise TorchcapsError(
            f"{data.name} has no labels, and the task {recipe.task.kind!r} needs them; "
            "--task reconstruct and --task masked do not."
        )
    if task_class(recipe.task).needs_labels and data.num_classes == 1:
        raise TorchcapsError(
            f"{data.name} has one class, {data.classes[0]!r}: there is nothing to tell apart."
        )
    sizes = sizes_of(data)
    for name, size in sizes.items():
        value = getattr(recipe.model, name)
        usual = {getattr(m.config, name) for m in models() if type(m.config) is type(recipe.model)}
        if value != size and value not in usual:
            raise TorchcapsError(
                f"model.{name}={value}, but {data.name} has {size}. The data decides this field; "
                "leave it out."
            )
    return replace(recipe, model=replace(recipe.model, **sizes))


def check_sizes(model: Model, data: Dataset) -> None:
    """Raise unless a model instance fits the images and classes of a data set."""
    shape, classes = data.image_shape, data.num_classes
    if model.config.image_shape != shape:
        channels, height, width = shape
        raise TorchcapsError(
            f"The model takes images of {_by(model.config.image_shape)}, {data.name} has "
            f"{_by(shape)} (channels x height x width). Build it for them: create_model(…, "
            f"in_channels={channels}, image_size={height}"
            + (f", image_width={width})" if width != height else ")")
            + ", or resize the images: 'folder:PATH,size=…'."
        )
    if "logits" in model.provides and classes and model.config.num_classes != classes:
        raise TorchcapsError(
            f"The model has {model.config.num_classes} classes, {data.name} has {classes}. Build "
            f"it with num_classes={classes}, or give pretrained weights a new head: "
            'fit(…, head="new").'
        )


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def like_pretrained(recipe: Recipe) -> Recipe:
    """A fine-tuned model has the sizes of the pretrained one; only its stage differs."""
    stage = getattr(recipe.model, "stage", None)
    if not recipe.start_from or stage is None:
        return recipe
    source = load(recipe.start_from).config
    if source.family != recipe.model.family:
        raise TorchcapsError(
            f"{recipe.start_from} is a {source.family}, this recipe trains a {recipe.model.family}."
        )
    defaults = type(recipe.model)()
    for field in fields(recipe.model):
        value, fixed = getattr(recipe.model, field.name), getattr(source, field.name)
        if field.name in ("stage", *SIZES) or value == fixed:
            continue
        if value != getattr(defaults, field.name):  # set by the user, not left at its default
            raise TorchcapsError(
                f"{field.name}={fixed} is fixed by the pretrained run {recipe.start_from}; got "
                f"{value}."
            )
    return replace(recipe, model=replace(source, **{"stage": stage}))


def seed_process(seed: int, rank: int, step: int = 0) -> None:
    """Give every process but the first random numbers of its own."""
    if rank:
        torch.manual_seed((seed * 1_000_003 + rank) * 1_000_003 + step)


def check_recipe(recipe: Recipe) -> None:
    """Raise if a field is out of its bounds, or fields do not go together."""
    check_bounds(recipe)
    for group in ("data", "optimizer", "schedule", "hardware"):
        check_bounds(getattr(recipe, group), f"{group}.")
    if recipe.stop_on == "test" and recipe.protocol == "ours":
        raise TorchcapsError(
            "stop_on=test chooses the model on the test split, so tables must mark the run: add "
            "--protocol paper."
        )
    if recipe.until == "fitted" and task_class(recipe.task).metric != "accuracy":
        raise TorchcapsError(
            f"until=fitted needs a classifier; the task is {recipe.task.kind}. Use until=end."
        )
    if task_class(recipe.task).needs_start and not recipe.start_from:
        raise TorchcapsError(
            f"The task {recipe.task.kind} starts from the weights of a run: add --from RUN."
        )
    if recipe.patience and recipe.choose == "last":
        raise TorchcapsError("patience waits for a better validation: add --choose best or loss.")
    if recipe.hardware.in_turn and recipe.hardware.processes > 1:
        raise TorchcapsError("hardware.in_turn is for runs of one process each.")
    if not 1 <= recipe.optimizer.accumulate <= recipe.batch_size:
        raise TorchcapsError("optimizer.accumulate must lie between 1 and the batch size.")


def set_up(
    recipe: Recipe, weights: dict[str, Tensor] | None = None, model: Model | None = None
) -> tuple[Recipe, RunContext]:
    """The recipe with its sizes filled in, and its context; the same weights for the same seed.

    weights: of a checkpoint of the task, for a resumed run; None: initial ones, as the recipe says.
    model: an instance whose weights are the initial ones
    """
    check_recipe(recipe)
    initialize = weights is None
    recipe = like_pretrained(recipe) if initialize else recipe
    fabric = make_fabric(recipe.hardware)
    with shared_loads():
        data = data_of(recipe.data, label_seed=recipe.seed)
        recipe = with_data(recipe, data)
        names = dict.fromkeys((*recipe.metrics, *recipe.watch))
        unlabelled = [n for n in names if not data.num_classes and read_metric(n)[0].single_labels]
        metrics, watch = (
            prepare(
                (name for name in group if name not in unlabelled),
                data, recipe.data.name, recipe.data.root or None, recipe.data.seed,
            )
            for group in (recipe.metrics, recipe.watch)
        )  # fmt: skip
    data = data.to(fabric.device)
    if isinstance(data.train.images, StoredImages):
        threads = recipe.hardware.decode_threads or default_threads(recipe.hardware.devices)
        data.train.images.store.use_threads(threads)
    if model is None and initialize and recipe.hardware.strategy != "fsdp":
        name = recipe.name if recipe.name in MODELS else recipe.model.family
        check_size(name, recipe.model, device=fabric.device, trained=True)
    torch.manual_seed(recipe.seed)
    task = build_task(recipe)
    if weights is not None:
        restore(task, weights)
    if model is not None:
        task.model.load_state_dict(model.state_dict())
    sharded = recipe.hardware.strategy == "fsdp"
    task = task.to(fabric.device) if sharded else on_device(task, fabric.device)
    task.check(data, recipe.data.cutmix)
    for metric in (*metrics, *watch):
        metric.check(task.model)
    report = ""
    if initialize and not recipe.start_from:
        (model or task.model).check_weights()
        report = task.model.load_weights() if model is None else ""
    if recipe.start_from and initialize:
        classes = data.classes if type(task).needs_labels else ()
        initialized = init_weights(task.model, recipe.start_from, classes, recipe.start_partly)
        if initialized.new and type(task).needs_start:
            raise TorchcapsError(
                f"The task {recipe.task.kind} needs all weights of the model, and "
                f"{recipe.start_from} lacks {listed(initialized.new)}."
            )
        report = str(initialized)
    data, augment = fixed_features(task.model, data, recipe.data)
    task.model.begin(data)
    task.begin(data)
    if sharded:  # the optimizer must see the sharded parameters
        module = fabric.setup_module(task)
        optimizer = fabric.setup_optimizers(make_optimizer(task, recipe.optimizer))
    else:
        module, optimizer = fabric.setup(task, make_optimizer(task, recipe.optimizer))
    seed_process(recipe.seed, fabric.global_rank)
    loader = Loader(
        data,
        recipe.batch_size,
        seed=recipe.seed,
        augment=Augment(augment) if augment else None,
        cutmix=recipe.data.cutmix,
        balanced=recipe.data.balanced,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
    )
    return recipe, RunContext(
        fabric, task, module, optimizer, data, metrics, watch, unlabelled, loader, report
    )
