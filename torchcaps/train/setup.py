"""What a run works with, built anew from its recipe at every start."""

import logging
import os
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard

from torchcaps.data import Augment, Dataset, Loader, Split
from torchcaps.data import load as load_data
from torchcaps.errors import TorchcapsError
from torchcaps.models import CapsuleModel
from torchcaps.models.registry import build
from torchcaps.train.load import data_of, load
from torchcaps.train.optim import make_optimiser
from torchcaps.train.recipe import Recipe


@dataclass
class Parts:
    fabric: Fabric
    model: CapsuleModel
    module: Any
    """The model as the strategy wraps it."""
    optimiser: Any
    data: Dataset
    others: dict[str, Split]
    """Test splits of the sets in `evaluate`: loaded first, so that what is wrong is said first."""
    loader: Loader


def with_data(recipe: Recipe, data: Dataset) -> Recipe:
    """The model's input and output sizes are the data set's."""
    channels, height, width = data.image_shape
    if height != width:
        raise TorchcapsError(f"{data.name}: images of {height}x{width}; models here take squares.")
    if recipe.objective == "classify" and not data.num_classes:
        raise TorchcapsError(
            f"{data.name} has no labels; --objective reconstruct and masked need none."
        )
    sizes = {"in_channels": channels, "image_size": height, "num_classes": max(1, data.num_classes)}
    return replace(recipe, model=replace(recipe.model, **sizes))


def other_tests(recipe: Recipe, data: Dataset) -> dict[str, Split]:
    found = {}
    for name in recipe.evaluate:
        other = load_data(name, recipe.data.root or None, seed=recipe.data.seed)
        if other.image_shape != data.image_shape or other.num_classes != data.num_classes:
            raise TorchcapsError(
                f"{name} (in `evaluate`) has images {other.image_shape} in {other.num_classes} "
                f"classes, {data.name} {data.image_shape} in {data.num_classes}; name other sets, "
                "or none: --evaluate"
            )
        found[name] = other.test
    return found


def like_its_source(recipe: Recipe) -> Recipe:
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
        if field.name in ("stage", "in_channels", "image_size", "num_classes") or wanted == has:
            continue
        if wanted != getattr(plain, field.name):  # not left as it was: somebody asked for it
            raise TorchcapsError(
                f"{recipe.start_from} has {field.name}={has}, and what goes on from it has too; "
                f"{wanted} was asked for."
            )
    return replace(recipe, model=replace(source, **{"stage": stage}))


def own_numbers(seed: int, rank: int, step: int = 0) -> None:
    """Random numbers of its own for every process but the first, which keeps those it has."""
    if rank:
        torch.manual_seed((seed * 1_000_003 + rank) * 1_000_003 + step)


def take_weights(model: CapsuleModel, source: str) -> int:
    """Every tensor of the source that has the same name and shape here; says if there is none."""
    given, own = load(source).state_dict(), model.state_dict()
    taken = {n: t for n, t in given.items() if n in own and own[n].shape == t.shape}
    if not any(name in taken for name, _ in model.named_parameters()):
        raise TorchcapsError(f"{source}: none of its weights fit this model.")
    model.load_state_dict(taken, strict=False)
    return len(taken)


def _shard(model: nn.Module, mesh: Any) -> nn.Module:
    for child in model.children():
        for part in child if isinstance(child, nn.ModuleList) else [child]:
            fully_shard(part, mesh=mesh["data_parallel"])
    fully_shard(model, mesh=mesh["data_parallel"])
    return model


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
    except (RuntimeError, ValueError) as error:  # Lightning says so when a device is not there
        raise TorchcapsError(f"This machine cannot run {hardware}: {error}") from None
    fabric.launch()
    return fabric


def set_up(recipe: Recipe) -> tuple[Recipe, Parts]:
    """The recipe with its sizes filled in, and the parts; the same weights for the same seed."""
    for name in ("epochs", "batch_size"):
        if getattr(recipe, name) < 1:
            raise TorchcapsError(f"{name}={getattr(recipe, name)}: it must be at least 1.")
    if recipe.stop_on == "test" and recipe.protocol == "ours":
        raise TorchcapsError(
            "stop_on=test chooses on the test split: name it, --protocol paper, so that tables can."
        )
    if not 1 <= recipe.optimiser.accumulate <= recipe.batch_size:
        raise TorchcapsError("optimiser.accumulate must lie between 1 and the batch size.")
    if not 0 <= recipe.data.cutmix <= 1:
        raise TorchcapsError(f"data.cutmix={recipe.data.cutmix}: a share of images, from 0 to 1.")
    if recipe.data.cutmix and (recipe.objective, recipe.loss.kind) != ("classify", "cross_entropy"):
        raise TorchcapsError("data.cutmix mixes labels, which only the cross_entropy loss takes.")
    recipe = like_its_source(recipe)
    fabric = make_fabric(recipe)
    data = data_of(recipe.data)
    recipe = with_data(recipe, data)
    others = other_tests(recipe, data)
    data = data.to(fabric.device)
    torch.manual_seed(recipe.seed)
    model = build(recipe.model).to(fabric.device)
    if recipe.data.cutmix and recipe.loss.reconstruction and getattr(model, "decoder", None):
        raise TorchcapsError(
            "data.cutmix mixes images, and a class capsule cannot draw a mixture: add "
            "--loss.reconstruction 0."
        )
    if recipe.start_from:
        take_weights(model, recipe.start_from)
    if recipe.hardware.strategy == "fsdp":  # the optimiser must see the sharded parameters
        module = fabric.setup_module(model)
        optimiser = fabric.setup_optimizers(make_optimiser(model, recipe.optimiser))
    else:
        module, optimiser = fabric.setup(model, make_optimiser(model, recipe.optimiser))
    own_numbers(recipe.seed, fabric.global_rank)
    loader = Loader(
        data,
        recipe.batch_size,
        seed=recipe.seed,
        augment=Augment(recipe.data.augment) if recipe.data.augment else None,
        cutmix=recipe.data.cutmix,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
    )
    return recipe, Parts(fabric, model, module, optimiser, data, others, loader)
