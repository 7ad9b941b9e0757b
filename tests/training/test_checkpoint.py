import json
import os
import shutil

import pytest
import torch

from torchcaps.errors import TorchcapsError
from torchcaps.training import checkpoint
from torchcaps.training.checkpoint import State


def write(folder, steps=(1, 2, 3)):
    for step in steps:
        tensors = {"w": torch.full((3,), float(step))}
        checkpoint.save(
            folder, State(step=step, best_value=0.5), tensors, {"optim/w/m": tensors["w"]}
        )


def test_the_last_two_are_kept_and_the_newest_loads(tmp_path):
    write(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000002", "00000003"]
    state, weights, training, problems = checkpoint.load_last(tmp_path)
    assert state == State(step=3, best_value=0.5) and not problems
    assert weights["w"].tolist() == [3, 3, 3] and training["optim/w/m"].tolist() == [3, 3, 3]


@pytest.mark.parametrize("file", ["weights.safetensors", "training.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "flip", "gone", "empty"])
def test_a_damaged_checkpoint_is_passed_over_and_named(tmp_path, file, damage):
    write(tmp_path)
    path = tmp_path / "00000003" / file
    data = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"")
    state, _, _, problems = checkpoint.load_last(tmp_path)
    assert state.step == 2 and "00000003" in problems[0]


def test_no_whole_checkpoint_is_an_error_that_lists_them(tmp_path):
    write(tmp_path)
    for folder in tmp_path.iterdir():
        (folder / "state.json").write_text("{}")
    with pytest.raises(TorchcapsError, match="00000002"):
        checkpoint.load_last(tmp_path)
    with pytest.raises(TorchcapsError, match="no valid checkpoint"):
        checkpoint.load_last(tmp_path / "nothing")


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    write(tmp_path)

    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TorchcapsError, match="disk is full.*00000003"):
        write(tmp_path, (4,))
    monkeypatch.undo()
    assert checkpoint.load_last(tmp_path)[0].step == 3
    assert not list(tmp_path.glob("*.tmp"))


def test_an_unfinished_write_is_never_taken_for_a_checkpoint(tmp_path):
    write(tmp_path)
    (tmp_path / "00000009.tmp").mkdir()
    assert checkpoint.load_last(tmp_path)[0].step == 3


@pytest.mark.parametrize("renamed", [False, True])
def test_a_step_that_was_being_replaced_has_one_checkpoint(tmp_path, renamed):
    """A kill between the two renames leaves the old one alone, one after both leaves two."""
    write(tmp_path)
    new, old = tmp_path / "00000003", tmp_path / "00000003.old"
    if renamed:
        shutil.copytree(tmp_path / "00000002", old)
    else:
        new.rename(old)
    checkpoint.tidy(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000002", "00000003"]
    assert checkpoint.load(new)[0].step == 3


def test_another_model_is_refused():
    with pytest.raises(TorchcapsError, match="another model"):
        checkpoint.restore(torch.nn.Linear(2, 2), {"weight": torch.zeros(3, 2)})


def test_write_atomic_leaves_the_old_file_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "record.json"
    checkpoint.write_atomic(path, b"old")

    def broken(*_):
        raise OSError("no")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError):
        checkpoint.write_atomic(path, json.dumps({"new": 1}).encode())
    assert path.read_bytes() == b"old"


def test_bad_checkpoints_go_unless_all_are_bad(tmp_path):
    write(tmp_path)
    checkpoint.forget_from(tmp_path, 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000002", "00000003"]
    checkpoint.forget_from(tmp_path, 3)
    assert [p.name for p in tmp_path.iterdir()] == ["00000002"]


def test_a_finished_run_frees_its_training_state_and_older_weights(tmp_path):
    write(tmp_path)
    files = ("00000003/training", "00000002/training", "00000002/weights")
    expected = sum((tmp_path / f"{name}.safetensors").stat().st_size for name in files)
    assert checkpoint.training_bytes(tmp_path) == expected
    checkpoint.drop_training_state(tmp_path)
    assert checkpoint.training_bytes(tmp_path) == 0
