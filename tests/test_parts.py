"""Embed and predict in parts: what one call gives, killed in between, byte for byte."""

import json

import numpy as np
import pytest
import torch

import torchcaps
from tests.data.test_pack import photographs
from torchcaps import parts
from torchcaps.cli import main
from torchcaps.data.sets.packed import pack_source
from torchcaps.errors import TorchcapsError
from torchcaps.models.registry import create_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    made = create_model(
        "convnet-avg-small", in_channels=3, image_size=16, num_classes=2,
        channels=(4, 8), strides=(1, 2), kernel_size=3, hidden=(),
    )  # fmt: skip
    made.class_names = ("cat", "dog")
    folder = tmp_path_factory.mktemp("model") / "saved"
    made.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    root = tmp_path_factory.mktemp("parts")
    photographs(root / "in", count=10)
    pack_source(str(root / "in"), root / "out")
    return root / "out"


def test_vectors_are_those_of_files_in_their_order(model, pack, tmp_path, capsys):
    words = ["embed", model, f"packed:{pack}", "--out", tmp_path / "out", "--part-size", "6"]
    assert main([*map(str, words), "--batch-size", "4"]) == 0
    assert "20x" in capsys.readouterr().out
    result = torchcaps.Parts(tmp_path / "out")
    files = sorted((pack.parent / "in").rglob("*.jpg"))
    expected = torchcaps.embed(str(model), files, batch_size=4).numpy()
    assert result.shape == expected.shape and len(result) == 20
    np.testing.assert_allclose(result[:], expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(result[[19, 0, 7]], result[:][[19, 0, 7]])
    assert np.array_equal(result[13], result[:][13]) and np.array_equal(result[-1], result[19])
    assert result.title(13).endswith(files[13].name)
    result.verify()
    folder = torchcaps.embed(
        str(model), f"folder:{pack.parent}/in", out=tmp_path / "files", part_size=6, batch_size=4
    )
    assert np.array_equal(folder[:], result[:])


def test_classes_are_those_of_predict(model, pack, tmp_path):
    result = torchcaps.predict(str(model), f"packed:{pack}", out=tmp_path / "out", top_k=2)
    expected = torchcaps.predict(str(model), pack.parent / "in", top_k=2)
    for row, classes in zip(result[:], expected, strict=True):
        assert [result.classes[n] for n in row["class"]] == [c.name for c in classes]
        assert row["probability"].tolist() == pytest.approx([c.probability for c in classes])


def test_a_killed_call_continues_with_the_same_bytes(model, pack, tmp_path, monkeypatch):
    options = {"part_size": 4, "batch_size": 4}
    whole = torchcaps.embed(str(model), f"packed:{pack}", out=tmp_path / "whole", **options)
    write, calls = parts.write_atomic, []

    def killed(path, content):
        calls.append(path)
        if path.name == "part-00002.json":  # the part is there, but not yet counted
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(parts, "write_atomic", killed)
    with pytest.raises(KeyboardInterrupt):
        torchcaps.embed(str(model), f"packed:{pack}", out=tmp_path / "killed", **options)
    with pytest.raises(TorchcapsError, match="unfinished one"):
        torchcaps.Parts(tmp_path / "killed")
    done = [p.name for p in calls]
    calls.clear()
    monkeypatch.setattr(parts, "write_atomic", lambda p, c: calls.append(p) or write(p, c))
    torchcaps.embed(str(model), f"packed:{pack}", out=tmp_path / "killed", **options)
    again = [p.name for p in calls if p.suffix == ".json"]
    assert "part-00001.json" in done and again[0] == "part-00002.json" and len(again) == 4
    for part in whole.manifest["parts"]:
        for suffix in (".npy", ".txt", ".json"):
            name = part["file"].replace(".npy", suffix)
            assert (tmp_path / "whole" / name).read_bytes() == (
                tmp_path / "killed" / name
            ).read_bytes()
    calls.clear()  # the same call once more has nothing to do
    torchcaps.embed(str(model), f"packed:{pack}", out=tmp_path / "killed", **options)
    assert not calls


def test_a_folder_of_other_results_is_not_mixed(model, pack, tmp_path):
    out = tmp_path / "out"
    torchcaps.embed(str(model), f"packed:{pack}", out=out)
    with pytest.raises(TorchcapsError, match="not empty"):
        torchcaps.embed(str(model), f"packed:{pack}", out=out, part_size=3)
    replaced = torchcaps.embed(str(model), f"packed:{pack}", out=out, part_size=3, force=True)
    assert len(replaced.manifest["parts"]) == 7


def test_damage_and_wrong_words_are_explained(model, pack, tmp_path, capsys):
    out = tmp_path / "out"
    result = torchcaps.embed(str(model), f"packed:{pack}", out=out)
    part = out / "part-00000.npy"
    content = part.read_bytes()
    part.unlink()
    part.write_bytes(content[:-4] + b"abcd")
    with pytest.raises(TorchcapsError, match=r"part-00000\.npy: its sha256 has changed"):
        result.verify()
    part.unlink()
    part.write_bytes(content[:100])
    with pytest.raises(TorchcapsError, match=r"part-00000\.npy: damaged"):
        torchcaps.Parts(out)
    manifest = json.loads((out / "manifest.json").read_text())
    (out / "manifest.json").write_text(json.dumps({**manifest, "images": 3}))
    with pytest.raises(TorchcapsError, match="manifest.json: damaged"):
        torchcaps.Parts(out)
    for words in (
        ["embed", str(model), "packed:nowhere", "--out", str(tmp_path / "a")],
        ["predict", str(model), f"packed:{pack}", "--out", str(tmp_path / "a"), "--csv"],
        ["embed", str(model), f"packed:{pack}", "--out", str(tmp_path / "a"), "--on", "mars"],
        ["embed", str(model), f"packed:{pack}", "--out", str(tmp_path / "a"), "--features", "x"],
    ):
        assert main(words) in (1, 2)
        assert capsys.readouterr().err.count("\n") <= 2
    with pytest.raises(TorchcapsError, match="add out=FOLDER"):
        torchcaps.embed(str(model), f"packed:{pack}", part_size=3)


def test_a_broken_image_is_named_and_the_other_parts_stay(model, pack, tmp_path):
    photographs(tmp_path / "in", count=4)
    (tmp_path / "in/dog/03.jpg").write_bytes(b"no image")
    with pytest.raises(TorchcapsError, match=r"part 2: .*dog/03\.jpg.*missing parts"):
        torchcaps.embed(str(model), f"folder:{tmp_path}/in", out=tmp_path / "out", part_size=2)
    assert len(list((tmp_path / "out").glob("part-*.json"))) == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:A worker stopped:UserWarning")  # loky starts it again
def test_parts_side_by_side_are_those_of_one_process(model, pack, tmp_path):
    one = torchcaps.embed(str(model), f"packed:{pack}", out=tmp_path / "one", part_size=10)
    two = torchcaps.embed(
        str(model), f"packed:{pack}", out=tmp_path / "two", part_size=10, at_once=2
    )
    assert np.array_equal(one[:], two[:])
