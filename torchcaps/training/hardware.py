"""Device, float32 precision and strategy: the one place that decides where a run computes."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.rendezvous import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from torchcaps.errors import TorchcapsError
from torchcaps.training.recipe import HardwareSpec

Module = TypeVar("Module", bound=nn.Module)


def best_device(name: str = "auto") -> torch.device:
    """A device by its name; `auto` is a GPU if there is one."""
    if name != "auto":
        return torch.device(name)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _set_float32(tf32: bool) -> None:
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32


@contextmanager
def evaluation_precision(hardware: HardwareSpec) -> Iterator[None]:
    """Evaluate in float32, with tf32 products unless the run trained in full float32.

    The record of a run and a later evaluation of it agree to the bit, whatever ran before.
    """
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    _set_float32(tf32=hardware.precision != "fp32")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def on_device(module: Module, device: torch.device) -> Module:
    """A module on a device; on a GPU the weights of convolutions are channels-last."""
    module = module.to(device)
    for part in module.modules() if device.type == "cuda" else ():
        if isinstance(part, nn.Conv2d):  # weights of capsules stay as they are
            part.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return module


def _shard(task: Any, mesh: Any) -> nn.Module:
    """Shard each layer, and the remaining parameters with the task, whose forward calls all."""
    for child in task.model.children():
        for part in child if isinstance(child, nn.ModuleList) else [child]:
            fully_shard(part, mesh=mesh["data_parallel"])
            if hasattr(part, "attend"):  # passes of several layers together do not call forward
                register_fsdp_forward_method(part, "attend")
    fully_shard(task, mesh=mesh["data_parallel"])
    return task


def _rejoin(hardware: HardwareSpec) -> None:
    """Join the process group under a new name when torchrun has restarted the processes.

    The store still holds the addresses of the dead processes under the first name.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" or hardware.processes < 2 or dist.is_initialized():
        return
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    agent_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, world, is_master=rank == 0 and not agent_store)
    on_cpu = hardware.accelerator == "cpu" or not torch.cuda.is_available()
    named = PrefixStore(f"attempt {attempt}", store)
    dist.init_process_group("gloo" if on_cpu else "nccl", store=named, rank=rank, world_size=world)


@contextmanager
def _without_srun_hint() -> Iterator[None]:
    """Silence Lightning's hint to use srun on machines where no SLURM job runs."""
    with warnings.catch_warnings():
        if "SLURM_JOB_ID" not in os.environ:
            warnings.filterwarnings("ignore", "The `srun` command is available")
        yield


def make_fabric(hardware: HardwareSpec) -> Fabric:
    """Device, precision and strategy; under torchrun or SLURM this process joins the others."""
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    _set_float32(tf32=hardware.precision != "fp32")
    # Shapes do not change within a run, so cuDNN may try its algorithms once and keep the fastest.
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    started, processes = int(os.environ.get("WORLD_SIZE", "1")), hardware.processes
    if started > 1 and started != processes:
        raise TorchcapsError(
            f"{started} processes were started, and the recipe has {processes}. Set "
            "--hardware.devices and --hardware.num-nodes, and --hardware.strategy ddp or fsdp."
        )
    strategy: Any = hardware.strategy
    if strategy == "fsdp":
        strategy = ModelParallelStrategy(
            _shard, data_parallel_size=processes, tensor_parallel_size=1
        )
    try:
        with _without_srun_hint():
            fabric = Fabric(
                accelerator=hardware.accelerator,
                devices=hardware.devices,
                num_nodes=hardware.num_nodes,
                strategy=strategy,
                precision="bf16-mixed" if hardware.precision == "bf16" else "32-true",
                # A run of one process is its own: tasks of SLURM are not its ranks.
                plugins=[LightningEnvironment()] if processes == 1 else None,
            )
    except (RuntimeError, ValueError) as error:  # Lightning raises these when a device is missing
        reason = " ".join(str(error).split())[:200]
        raise TorchcapsError(
            f"This machine cannot run on {processes} {hardware.accelerator}, {hardware.strategy}: "
            f"{reason}"
        ) from None
    _rejoin(hardware)
    fabric.launch()
    return fabric
