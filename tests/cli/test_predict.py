"""From a folder to predictions, vectors and an exported file, on one small run."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import torchcaps
from torchcaps.cli import main
from torchcaps.data.images import read_image
from torchcaps.data.sets.folder import load_folder
from torchcaps.errors import TorchcapsError
from torchcaps.training.loop import start


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Two images of each digit as files, in folders of their class."""
    folder = tmp_path_factory.mktemp("pictures")
    digits = torchcaps.data.load("digits").test
    for label in range(10):
        inside = folder / f"digit {label}"
        inside.mkdir()
        for number, row in enumerate((digits.labels == label).nonzero()[:2, 0].tolist()):
            Image.fromarray(digits.images[row, 0].numpy()).save(inside / f"{number}.png")
    return folder


@pytest.fixture
def run(tiny_recipe, tmp_path):
    return start(tiny_recipe, tmp_path / "run").folder


def test_a_run_knows_its_classes_and_names_them(run, pictures, capsys):
    model = torchcaps.load(run)
    assert model.class_names == tuple("0123456789")
    one = pictures / "digit 3" / "0.png"
    (said,) = model.predict(one, top_k=3)
    assert len(said) == 3 and said[0].probability >= said[1].probability
    assert main(["predict", str(run), str(one), "--top", "3", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["file"] == str(one)
    assert [c["name"] for c in found["classes"]] == [a.name for a in said]
    assert main(["predict", str(run), str(pictures), "--csv", "--top", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "file,class,probability" and len(lines) == 1 + 20 * 10
    assert main(["predict", str(run), str(one)]) == 0
    assert said[0].name in capsys.readouterr().out
    images = torch.rand(2, 1, 28, 28)
    output = model(images)
    lengths, logits = output.scores.detach(), output.logits.detach()
    both = model.predict(images, top_k=10)
    assert both[1][0].probability == pytest.approx(
        float((logits / model.temperature).softmax(1)[1].max()), rel=1e-5
    )
    model.temperature = None  # as of a model that another program trained
    probabilities = lengths / lengths.sum(1, keepdim=True)
    both = model.predict(images, top_k=10)
    assert both[1][0].probability == pytest.approx(float(probabilities[1].max()), rel=1e-5)


def test_vectors_are_the_models(run, pictures, tmp_path, capsys):
    out = tmp_path / "vectors.npy"
    assert main(["embed", str(run), str(pictures), "--out", str(out)]) == 0
    vectors, names = np.load(out), out.with_suffix(".txt").read_text().splitlines()
    assert len(vectors) == len(names) == 20
    model = torchcaps.load(run)
    image = read_image(pictures / "digit 0" / "0.png", 28, "L")[None].float() / 255
    wanted = next(iter(model.representations(image).values()))
    np.testing.assert_allclose(vectors[0], wanted[0].detach(), atol=1e-5)
    table = tmp_path / "vectors.csv"
    words = ["embed", str(run), str(pictures), "--out", str(table), "--features", "pixels"]
    assert main(words) == 0
    head, first, *_ = (line.split(",") for line in table.read_text().splitlines())
    assert head == ["file", *(f"feature_{n}" for n in range(784))]
    assert first[0] == names[0] and len(first) == 1 + 784
    assert main(["embed", str(run), str(pictures), "--out", "vectors.txt"]) == 2
    assert ".npy or .csv" in capsys.readouterr().err
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["embed", str(run), str(pictures), "--out", str(tmp_path / "mine.npy")]) == 1
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning", "ignore::DeprecationWarning")
def test_an_exported_file_was_compared(run, tmp_path, capsys):
    out = tmp_path / "model.pt2"
    assert main(["export", str(run), "--out", str(out)]) == 2 and not out.exists()
    assert "has the suffix of --format torch" in capsys.readouterr().err
    assert main(["export", str(run), "--format", "torch", "--out", str(out)]) == 0
    assert "largest difference" in capsys.readouterr().out
    again = torch.export.load(out).module()(torch.rand(3, 1, 28, 28))
    assert again.logits.shape == (3, 10)
    onnxruntime = pytest.importorskip("onnxruntime")
    out = tmp_path / "model.onnx"
    assert main(["export", str(run), "--out", str(out)]) == 0
    session = onnxruntime.InferenceSession(str(out))
    images = torch.rand(3, 1, 28, 28)
    (logits, *_) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    with torch.no_grad():
        wanted = torchcaps.load(run)(images).logits
    torch.testing.assert_close(torch.from_numpy(logits), wanted, atol=1e-4, rtol=1e-4)


USAGE = ("no such file", "Give an image")


@pytest.mark.parametrize(
    "words, said",
    [
        (["predict", "RUN", "nothing.png"], "no such file"),
        (["predict", "RUN"], "Give an image"),
        (["predict", "RUN", "EMPTY"], "no images in this folder"),
        (["predict", "RUN", "BROKEN"], "not an image"),
        (["predict", "RUN", "GOOD", "--top", "0"], "at least 1"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_what_cannot_be_predicted_is_said(words, said, run, pictures, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.png").write_bytes(b"no picture")
    names = {"RUN": run, "EMPTY": tmp_path / "empty", "BROKEN": tmp_path / "broken.png",
             "GOOD": pictures / "digit 1" / "0.png"}  # fmt: skip
    assert main([str(names.get(w, w)) for w in words]) == (2 if said in USAGE else 1)
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1


def test_phone_photos_stand_upright(tmp_path):
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[0] = 255  # lit from above, once it stands upright
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera lay on its side
    Image.fromarray(np.rot90(pixels).copy()).save(tmp_path / "a.png", exif=exif)
    image = read_image(tmp_path / "a.png", 8, "RGB")
    assert image[:, 0].min() > 200 and image[:, 4:].max() < 50


def folder_of(root, *names):
    for name in names:
        (root / name).mkdir(parents=True)
        for n in range(12):
            Image.fromarray(np.full((6, 6), 20 * n, np.uint8)).save(root / name / f"{n}.png")
    return root


def test_splits_are_never_taken_for_classes(tmp_path):
    tree = folder_of(tmp_path / "a", "Train/x", "Train/y", "Val/x", "Val/y")
    (tree / ".ipynb_checkpoints").mkdir()
    (tree / "Train" / "x" / "._0.png").write_bytes(b"a Mac was here")
    assert load_folder("a", tree, seed=0, size=6, mode="L").classes == ("x", "y")


def test_names_of_classes_are_checked_when_a_model_is_read(run, tmp_path):
    folder = tmp_path / "model"
    torchcaps.load(run).save_pretrained(folder)
    assert torchcaps.load(folder).class_names == tuple("0123456789")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "classes": 3}))
    with pytest.raises(TorchcapsError, match="list of names"):
        torchcaps.load(folder)


def test_models_are_found_by_a_pattern():
    assert "capsnet" in torchcaps.list_models("caps*")
    assert all(name.startswith("caps") for name in torchcaps.list_models("caps*"))


def test_one_prediction_imports_nothing_that_it_does_not_need(run, pictures):
    """So that it ends within 1.5 s more than torch's own import takes."""
    code = (
        "import sys; from torchcaps.cli import main; "
        f"main(['predict', {str(run)!r}, {str(pictures / 'digit 3' / '0.png')!r}]); "
        "print(sorted({'matplotlib', 'sklearn', 'scipy', 'lightning_fabric', 'huggingface_hub', "
        "'mlxtend', 'onnx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_mistyped_run_is_told_from_a_model_of_the_hub(tmp_path, monkeypatch, capsys):
    def nowhere(source):
        raise OSError

    monkeypatch.setattr(torchcaps.models.Model, "from_pretrained", nowhere)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "capsnet-small-s0").mkdir(parents=True)
    Image.new("L", (28, 28)).save(tmp_path / "x.png")
    assert main(["predict", "runs/capsnet-smal-s0", "x.png"]) == 1
    said = capsys.readouterr().err
    assert "no such folder" in said and "capsnet-small-s0" in said
