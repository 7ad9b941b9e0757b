"""Compiled artifacts: in parts, for this machine alone, and only from files of one's own."""

import json
import os
from dataclasses import replace

import pytest
import torch

from torchcaps.errors import TorchcapsError
from torchcaps.training import compile_cache
from torchcaps.training.compile_cache import load_artifacts, machine_key, save_artifacts
from torchcaps.training.loop import start
from torchcaps.training.registry import digest

CPU = torch.device("cpu")


@pytest.fixture
def compiled(monkeypatch):
    """Artifacts of 100 bytes in place of torch's, in parts of 30; and what torch is given back."""
    given = []
    data = os.urandom(100)
    monkeypatch.setattr(compile_cache, "PART", 30)
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: (data, None))
    monkeypatch.setattr(torch.compiler, "load_cache_artifacts", given.append)
    return data, given


def test_they_are_kept_in_parts_and_come_back_whole(compiled, tmp_path):
    data, given = compiled
    folder = tmp_path / "a/b"
    assert not load_artifacts(folder, CPU)
    assert save_artifacts(folder, CPU) and save_artifacts(folder, CPU)
    sizes = [p.stat().st_size for p in sorted(folder.glob("part-*"))]
    assert sizes == [30, 30, 30, 10] and not list(tmp_path.glob("a/*.tmp"))
    assert load_artifacts(folder, CPU) and given == [data]


def test_parts_are_at_most_16_mb():
    assert compile_cache.PART == 16_000_000


@pytest.mark.parametrize("field", ["device", "torch", "triton"])
def test_another_key_is_refused(compiled, tmp_path, field):
    save_artifacts(tmp_path / "a", CPU)
    path = tmp_path / "a/manifest.json"
    manifest = json.loads(path.read_text())
    assert manifest["key"] == machine_key(CPU) and machine_key(CPU)["torch"] == torch.__version__
    manifest["key"][field] = "another"
    path.write_text(json.dumps(manifest))
    with pytest.raises(TorchcapsError, match=f"was compiled for {field} another; this is {field}"):
        load_artifacts(tmp_path / "a", CPU)
    assert compiled[1] == []


def test_damaged_or_foreign_files_are_refused(compiled, tmp_path):
    folder = tmp_path / "a"
    save_artifacts(folder, CPU)
    part = folder / "part-001.bin"
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + b"?")
    with pytest.raises(TorchcapsError, match="part-001.bin: not the part that was saved"):
        load_artifacts(folder, CPU)
    part.write_bytes(whole)
    part.chmod(0o666)
    with pytest.raises(TorchcapsError, match="others can write to it"):
        load_artifacts(folder, CPU)
    part.unlink()
    with pytest.raises(TorchcapsError, match="no such file"):
        load_artifacts(folder, CPU)
    for text in ("", "[]", '{"key": {}, "parts": [[1, 2, 3]]}', '{"key": {}}'):
        (folder / "manifest.json").write_text(text)
        with pytest.raises(TorchcapsError, match="not a readable list"):
            load_artifacts(folder, CPU)
    assert compiled[1] == []


def test_nothing_compiled_is_nothing_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.compiler, "save_cache_artifacts", lambda: None)
    assert not save_artifacts(tmp_path / "a", CPU) and not (tmp_path / "a").exists()


def test_runs_that_differ_in_seed_share_them(compiled, tiny_recipe, tmp_path, monkeypatch, capsys):
    data, given = compiled
    monkeypatch.setattr(torch, "compile", lambda function, mode=None: function)
    folder = str(tmp_path / "artifacts")
    hardware = replace(tiny_recipe.hardware, compile="default", artifacts=folder)
    recipe = replace(tiny_recipe, epochs=1, hardware=hardware)
    start(recipe, tmp_path / "one")
    assert given == [] and [p.name for p in (tmp_path / "artifacts").iterdir()] == [digest(recipe)]
    start(replace(recipe, seed=1), tmp_path / "two")
    assert given == [data]
    start(replace(recipe, hardware=replace(hardware, compile="none")), tmp_path / "three")
    assert given == [data], "a run that does not compile needs none"


@pytest.mark.slow
def test_another_process_finds_what_was_compiled(tmp_path):
    """Fresh caches: everything is a hit after loading, and a miss before."""
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    def product(x, w):
        return x @ w

    x, w = torch.rand(3, 4), torch.rand(4, 5)
    for known in (False, True):
        torch.compiler.reset()
        counters.clear()
        with fresh_cache():
            assert load_artifacts(tmp_path / "a", CPU) == known
            torch.testing.assert_close(torch.compile(product)(x, w), x @ w)
            found = counters["aot_autograd"]
            assert (found["autograd_cache_hit"], found["autograd_cache_miss"]) == (known, not known)
            assert save_artifacts(tmp_path / "a", CPU)
