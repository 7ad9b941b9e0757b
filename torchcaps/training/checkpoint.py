"""Checkpoints that survive a kill: written under a temporary name, fsynced, renamed.

    checkpoints/00001234/weights.safetensors    the task with its model
                         training.safetensors   optimizer, average, best weights, RNG, losses
                         state.json             step, best value, sha256 of all three files

No pickle: tensors in safetensors, the rest in JSON.
"""

import errno
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from torchcaps.data.source import sha256
from torchcaps.errors import TorchcapsError

KEEP = 2


@dataclass
class State:
    """Progress of a run, beside its tensors."""

    step: int = 0
    best_value: float | None = None
    best_epoch: int = -1
    improved_epoch: int = -1
    """The last epoch that was better than all before, and not equal to the best."""
    finished: bool = False
    metrics_bytes: int = 0
    """Length of metrics.jsonl at this step; lines after it are cut off on resume."""
    metrics_sum: str = ""
    """The sha256 of so much of it."""
    seconds: float = 0.0
    """Time spent in training, over all resumes."""


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file as a whole: the old one stays until the new one is on the disk."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)  # a full disk needs the room
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that FSDP may have sharded."""
    gather = getattr(tensor, "full_tensor", None)
    return (gather() if gather else tensor).detach()


def full(tensor: Tensor) -> Tensor:
    """The whole of a sharded tensor, on the CPU."""
    return _whole(tensor).cpu().contiguous()


def like(tensor: Tensor, reference: Tensor) -> Tensor:
    """The tensor where and as the reference is, sharded again if that is."""
    whole = tensor.to(reference.device)
    if not hasattr(reference, "full_tensor") or tensor.shape != reference.shape:
        return whole
    from torch.distributed.tensor import distribute_tensor  # half a second, for FSDP alone

    return distribute_tensor(whole, reference.device_mesh, reference.placements)  # pyright: ignore


def tensors_of(module: nn.Module, cpu: bool = True) -> dict[str, Tensor]:
    """A copy of a module's state, whole; on the CPU or where it is."""
    copy = full if cpu else lambda t: _whole(t).clone()
    return {name: copy(tensor) for name, tensor in module.state_dict().items()}


def restore(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    state = module.state_dict()
    if state.keys() != tensors.keys() or any(state[n].shape != t.shape for n, t in tensors.items()):
        raise TorchcapsError("The checkpoint holds another model than the recipe describes.")
    with torch.no_grad():
        for name, tensor in tensors.items():
            state[name].copy_(like(tensor, state[name]))


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """optim/<parameter>/<key> -> tensor"""
    return {
        f"optim/{name}/{key}": full(value)
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(model: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    fused = any(group.get("fused") for group in optimizer.param_groups)
    for path, tensor in tensors.items():
        kind, _, rest = path.partition("/")
        if kind != "optim":
            continue
        name, _, key = rest.rpartition("/")
        parameter = parameters[name]
        # Adam's step counter lives on the CPU unless the optimizer is fused
        value = tensor if key == "step" and not fused else like(tensor, parameter)
        if value.shape == parameter.shape:  # laid out in memory as the parameter is
            value = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        optimizer.state[parameter][key] = value.clone()


def _bytes(tensors: dict[str, Tensor]) -> bytes:
    """As safetensors: channels-last tensors are written in the order of their axes."""
    return safetensors.torch.save({name: t.contiguous() for name, t in tensors.items()})


def _summed(values: dict[str, Any]) -> bytes:
    """As JSON, with the sum of all of it."""
    return json.dumps({**values, "sum": sum_of(values)}).encode()


def sum_of(values: dict[str, Any]) -> str:
    """The sha256 of an object, however it is written."""
    return sha256(json.dumps(values, sort_keys=True).encode())


def save(
    folder: Path, state: State, weights: dict[str, Tensor], training: dict[str, Tensor]
) -> None:
    """Write checkpoint `state.step`, then forget all but the last two."""
    final = folder / f"{state.step:08d}"
    temporary = folder / f"{final.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        files = {
            "weights.safetensors": _bytes(weights),
            "training.safetensors": _bytes(training),
        }
        sums = {name: sha256(data) for name, data in files.items()}
        files["state.json"] = _summed({**asdict(state), "sha256": sums})
        for name, data in files.items():
            write_atomic(temporary / name, data)
        if final.exists():  # the same step again: the old one stays until the new one is there
            os.replace(final, folder / f"{final.name}.old")
        os.replace(temporary, final)
        shutil.rmtree(folder / f"{final.name}.old", ignore_errors=True)
        _sync_folder(folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        good = next(iter(numbered(folder)), None)
        reason = "the disk is full" if error.errno == errno.ENOSPC else str(error)
        kept = f"the last good checkpoint is {good}" if good else "there is no earlier one"
        raise TorchcapsError(
            f"Checkpoint {final} could not be written: {reason}; {kept}."
        ) from None
    for old in numbered(folder)[KEEP:]:
        _forget(old)


def _forget(path: Path) -> None:
    """A checkpoint goes as a whole: one that is half gone has a name that `tidy` knows."""
    going = path.with_name(f"{path.name}.tmp")
    shutil.rmtree(going, ignore_errors=True)
    try:
        os.replace(path, going)
    except OSError:
        return  # it can stay
    shutil.rmtree(going, ignore_errors=True)


def numbered(folder: Path) -> list[Path]:
    """Complete checkpoints in a folder, newest first."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if p.name.isdigit()), reverse=True)


def load(path: Path) -> tuple[State, dict[str, Tensor], dict[str, Tensor]]:
    """One checkpoint, checked byte for byte."""
    try:
        values: dict[str, Any] = json.loads((path / "state.json").read_text())
        if values.pop("sum") != sum_of(values) or values["step"] != int(path.name):
            raise TorchcapsError(f"{path / 'state.json'} is damaged: its sha256 has changed.")
        sums = values.pop("sha256")
        tensors = []
        for name in ("weights.safetensors", "training.safetensors"):
            data = (path / name).read_bytes()
            if sha256(data) != sums[name]:
                raise TorchcapsError(f"{path / name} is damaged: its sha256 has changed.")
            tensors.append(safetensors.torch.load(data))
        return State(**values), tensors[0], tensors[1]
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError,
        safetensors.SafetensorError,
    ) as error:  # fmt: skip
        raise TorchcapsError(f"{path} is damaged ({type(error).__name__}: {error}).") from None


def tidy(folder: Path) -> None:
    """Remove the traces of a kill from a folder that no process trains; an old checkpoint whose
    replacement was not there yet comes back.
    """
    for path in folder.glob("*.old") if folder.is_dir() else ():
        if not (folder / path.stem).exists():
            os.replace(path, folder / path.stem)
    for path in [*folder.glob("*.old"), *folder.glob("*.tmp")] if folder.is_dir() else ():
        shutil.rmtree(path, ignore_errors=True)


def drop_training_state(folder: Path) -> None:
    """Keep of a finished run's checkpoints the last weights and their average.

    Evaluation and fine-tuning read model/; optimizer, best weights and losses are not needed again.
    """
    tidy(folder)
    newest = next(iter(numbered(folder)), None)
    if newest is None:
        return
    state, weights, training = load(newest)
    save(folder, state, weights, {n: t for n, t in training.items() if n.startswith("ema/")})
    for path in numbered(folder)[1:]:
        _forget(path)


def training_bytes(folder: Path) -> int:
    """Bytes that `drop_training_state` would free, but for the average of the weights."""
    states = [path / "training.safetensors" for path in numbered(folder)]
    if states:
        with safetensors.safe_open(states[0], "pt") as file:
            if all(name.startswith("ema/") for name in file.keys()):  # noqa: SIM118
                states = states[1:]
    older = (path / "weights.safetensors" for path in numbered(folder)[1:])
    return sum(file.stat().st_size for file in (*states, *older) if file.exists())


def forget_from(folder: Path, step: int) -> None:
    """Checkpoints of a step and later go, unless there would be none: their weights are bad."""
    bad = [path for path in numbered(folder) if int(path.name) >= step]
    for path in bad if len(bad) < len(numbered(folder)) else ():
        _forget(path)


def load_last(folder: Path) -> tuple[State, dict[str, Tensor], dict[str, Tensor], list[str]]:
    """The newest checkpoint that is whole, and what was wrong with newer ones."""
    problems = []
    for path in numbered(folder):
        try:
            return *load(path), problems
        except TorchcapsError as error:
            problems.append(str(error))
    details = "\n".join(problems) or "There is none."
    raise TorchcapsError(f"{folder}: no valid checkpoint to resume from.\n{details}")
