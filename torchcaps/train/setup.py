"""What a run works with, built anew from its recipe at every start."""

import logging
import os
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.rendezvous import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from torchcaps.analysis.measures import Taken, prepare, read_measure
from torchcaps.data import Augment, Dataset, Loader
from torchcaps.data.registry import shared_loads
from torchcaps.errors import TorchcapsError
from torchcaps.models.base import SIZES
from torchcaps.models.registry import build, models
from torchcaps.train.evaluate import on_device
from torchcaps.train.load import data_of, load
from torchcaps.train.optim import make_optimiser
from torchcaps.train.recipe import HardwareSpec, Recipe
from torchcaps.train.starting import listed, take_weights
from torchcaps.train.tasks import Task, make_task, task_class


@dataclass
class Parts:
    fabric: Fabric
    task: Task
    module: Any
    """The task as the strategy wraps it."""
    optimiser: Any
    data: Dataset
    measures: list[Taken]
    """What is measured at the end: loaded first, so that what is wrong is said first."""
    watch: list[Taken]
    left_out: list[str]
    """Measures that need labels, where the data has none."""
    loader: Loader
    begun: str = ""
    """Which weights it began with, where these are another run's."""


def build_task(recipe: Recipe) -> Task:
    return make_task(build(recipe.model), recipe.task)


def with_data(recipe: Recipe, data: Dataset) -> Recipe:
    """The model's input and output sizes are the data set's; others cannot be asked for."""
    channels, height, width = data.image_shape
    if task_class(recipe.task).needs_labels and not data.num_classes:
        raise TorchcapsError(
            f"{data.name} has no labels, and the task {recipe.task.kind!r} needs them; "
            "--task reconstruct and --task masked do not."
        )
    if task_class(recipe.task).needs_labels and data.num_classes == 1:
        raise TorchcapsError(
            f"{data.name} has one class, {data.classes[0]!r}: there is nothing to tell apart."
        )
    oblong = width if width != height else 0
    sizes = dict(zip(SIZES, (channels, height, oblong, max(1, data.num_classes)), strict=True))
    for name, size in sizes.items():
        asked = getattr(recipe.model, name)
        usual = {getattr(m.config, name) for m in models() if type(m.config) is type(recipe.model)}
        if asked != size and asked not in usual:
            raise TorchcapsError(
                f"model.{name}={asked} was asked for, and {data.name} has {size}: the data decides."
            )
    return replace(recipe, model=replace(recipe.model, **sizes))


def like_pretrained(recipe: Recipe) -> Recipe:
    """A model that goes on from a pretrained one has its sizes; only the stage is its own."""
    stage = getattr(recipe.model, "stage", None)
    if not recipe.start_from or stage is None:
        return recipe
    source = load(recipe.start_from).config
    if source.family != recipe.model.family:
        raise TorchcapsError(
            f"{recipe.start_from} is a {source.family}, this recipe trains a {recipe.model.family}."
        )
    plain = type(recipe.model)()
    for field in fields(recipe.model):
        wanted, has = getattr(recipe.model, field.name), getattr(source, field.name)
        if field.name in ("stage", *SIZES) or wanted == has:
            continue
        if wanted != getattr(plain, field.name):  # not left as it was: somebody asked for it
            raise TorchcapsError(
                f"{recipe.start_from} has {field.name}={has}, and what goes on from it has too; "
                f"{wanted} was asked for."
            )
    return replace(recipe, model=replace(source, **{"stage": stage}))


def seed_process(seed: int, rank: int, step: int = 0) -> None:
    """Random numbers of its own for every process but the first, which keeps those it has."""
    if rank:
        torch.manual_seed((seed * 1_000_003 + rank) * 1_000_003 + step)


def _shard(task: Any, mesh: Any) -> nn.Module:
    """Layers one by one, and what is left with the task, whose forward calls everything."""
    for child in task.model.children():
        for part in child if isinstance(child, nn.ModuleList) else [child]:
            fully_shard(part, mesh=mesh["data_parallel"])
            if hasattr(part, "attend"):  # passes of several layers together do not call forward
                register_fsdp_forward_method(part, "attend")
    fully_shard(task, mesh=mesh["data_parallel"])
    return task


def _join_again(hardware: HardwareSpec) -> None:
    """Processes that torchrun starts once more meet under another name than the first time: its
    store still holds the addresses of the dead, and would send them there.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" or hardware.processes < 2 or dist.is_initialized():
        return
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    kept = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, world, is_master=rank == 0 and not kept)
    on_cpu = hardware.accelerator == "cpu" or not torch.cuda.is_available()
    named = PrefixStore(f"attempt {attempt}", store)
    dist.init_process_group("gloo" if on_cpu else "nccl", store=named, rank=rank, world_size=world)


def make_fabric(recipe: Recipe) -> Fabric:
    """Device, precision and strategy; under torchrun or SLURM this process joins the others."""
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    hardware = recipe.hardware
    fast = hardware.precision != "fp32"
    torch.set_float32_matmul_precision("high" if fast else "highest")
    torch.backends.cudnn.allow_tf32 = fast
    # Shapes do not change within a run, so cuDNN may try its algorithms once and keep the fastest.
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    started, wanted = int(os.environ.get("WORLD_SIZE", "1")), hardware.processes
    if started > 1 and started != wanted:
        raise TorchcapsError(
            f"{started} processes were started for {wanted}: say --hardware.devices and "
            "--hardware.num-nodes, and --hardware.strategy ddp or fsdp."
        )
    strategy: Any = hardware.strategy
    if strategy == "fsdp":
        world = hardware.processes
        strategy = ModelParallelStrategy(_shard, data_parallel_size=world, tensor_parallel_size=1)
    try:
        fabric = Fabric(
            accelerator=hardware.accelerator,
            devices=hardware.devices,
            num_nodes=hardware.num_nodes,
            strategy=strategy,
            precision="bf16-mixed" if hardware.precision == "bf16" else "32-true",
        )
    except (RuntimeError, ValueError) as error:  # Lightning says so when a device is missing
        wanted = f"{hardware.processes} {hardware.accelerator}, {hardware.strategy}"
        said = " ".join(str(error).split())[:200]
        raise TorchcapsError(f"This machine cannot run on {wanted}: {said}") from None
    _join_again(hardware)
    fabric.launch()
    return fabric


RANGES = {
    "seed": (0, 2**31 - 1), "epochs": (1, 10**6), "steps": (0, 10**9), "batch_size": (1, 10**6),
    "validate_every": (0, 10**9), "target_accuracy": (0, 1), "checkpoint_seconds": (0, 10**9),
    "data.seed": (0, 2**31 - 1), "data.held_out": (0, 10**9), "data.per_class": (0, 10**9),
    "data.cutmix": (0, 1), "optimiser.lr": (0, 1e30), "optimiser.weight_decay": (0, 1e4),
    "optimiser.momentum": (0, 0.99999), "optimiser.beta": (0, 0.99999), "optimiser.eps": (0, 1),
    "optimiser.clip": (0, 1e9), "optimiser.ema": (0, 1), "optimiser.accumulate": (1, 10**6),
    "schedule.warmup": (0, 1), "schedule.gamma": (0, 1e3), "schedule.period": (1, 10**9),
    "schedule.final": (0, 1), "hardware.num_nodes": (1, 10**5),
}  # fmt: skip
"""The least and the most that a number of a recipe may be."""


def _check_ranges(recipe: Recipe) -> None:
    for name, (least, most) in RANGES.items():
        group, _, field = name.rpartition(".")
        value = getattr(getattr(recipe, group) if group else recipe, field)
        if not least <= value <= most:  # not a number is in no range
            raise TorchcapsError(f"{name}={value}: it must be at least {least} and at most {most}.")


def _check(recipe: Recipe) -> None:
    _check_ranges(recipe)
    if recipe.stop_on == "test" and recipe.protocol == "ours":
        raise TorchcapsError(
            "stop_on=test chooses on the test split: name it, --protocol paper, so that tables can."
        )
    if task_class(recipe.task).needs_start and not recipe.start_from:
        raise TorchcapsError(f"The task {recipe.task.kind} goes on from a run: say --from RUN.")
    if recipe.hardware.in_turn and recipe.hardware.processes > 1:
        raise TorchcapsError("hardware.in_turn is for runs of one process each.")
    if not 1 <= recipe.optimiser.accumulate <= recipe.batch_size:
        raise TorchcapsError("optimiser.accumulate must lie between 1 and the batch size.")


def set_up(recipe: Recipe, take: bool = True) -> tuple[Recipe, Parts]:
    """The recipe with its sizes filled in, and the parts; the same weights for the same seed.

    take: begin with the weights that `start_from` names (a run that goes on has its own)
    """
    _check(recipe)
    recipe = like_pretrained(recipe) if take else recipe
    fabric = make_fabric(recipe)
    with shared_loads():
        data = data_of(recipe.data, draw=recipe.seed)
        recipe = with_data(recipe, data)
        every = dict.fromkeys((*recipe.measures, *recipe.watch))
        left_out = [t for t in every if not data.num_classes and read_measure(t)[0].single_labels]
        measures, watch = (
            prepare(
                (text for text in texts if text not in left_out),
                data, recipe.data.name, recipe.data.root or None, recipe.data.seed,
            )
            for texts in (recipe.measures, recipe.watch)
        )  # fmt: skip
    data = data.to(fabric.device)
    torch.manual_seed(recipe.seed)
    task = build_task(recipe)
    sharded = recipe.hardware.strategy == "fsdp"
    task = task.to(fabric.device) if sharded else on_device(task, fabric.device)
    task.check(data, recipe.data.cutmix)
    for taken in (*measures, *watch):
        taken.check(task.model)
    begun = ""
    if recipe.start_from and take:
        labelled = data.classes if type(task).needs_labels else ()
        taken = take_weights(task.model, recipe.start_from, labelled, recipe.start_partly)
        if taken.anew and type(task).needs_start:
            raise TorchcapsError(
                f"The task {recipe.task.kind} needs all weights of the model, and "
                f"{recipe.start_from} lacks {listed(taken.anew)}."
            )
        begun = str(taken)
    task.begin(data)
    if sharded:  # the optimiser must see the sharded parameters
        module = fabric.setup_module(task)
        optimiser = fabric.setup_optimizers(make_optimiser(task, recipe.optimiser))
    else:
        module, optimiser = fabric.setup(task, make_optimiser(task, recipe.optimiser))
    seed_process(recipe.seed, fabric.global_rank)
    loader = Loader(
        data,
        recipe.batch_size,
        seed=recipe.seed,
        augment=Augment(recipe.data.augment) if recipe.data.augment else None,
        cutmix=recipe.data.cutmix,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
    )
    made = (fabric, task, module, optimiser, data, measures, watch, left_out, loader, begun)
    return recipe, Parts(*made)
