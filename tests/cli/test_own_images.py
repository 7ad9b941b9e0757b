"""One's own images on the command line: a model's name is enough, and classes have names."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

import torchcaps
from torchcaps.cli import main
from torchcaps.errors import TorchcapsError
from torchcaps.training.auto_recipe import auto_recipe
from torchcaps.training.init_weights import init_weights
from torchcaps.training.load import data_of
from torchcaps.training.recipe import DataSpec

COLORS = {"blue": 2, "green": 1, "red": 0}


def paint(folder, names, count=20, size=16):
    """Folders of noisy pictures in one colour each, which any network learns."""
    draw = np.random.default_rng(0)
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = draw.integers(0, 60, (size, size, 3), dtype=np.uint8)
            pixels[:, :, COLORS.get(name, 0)] += 150
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def colors(tmp_path_factory):
    folder = paint(tmp_path_factory.mktemp("colours"), COLORS)
    words = ["train", "convnet-avg-small", "--data", f"folder:{folder},size=16", "--epochs", "6",
             "--model.channels", "8", "8", "--model.kernel-size", "3", "--optimizer.ema", "0",
             "--optimizer.lr", "0.01"]  # fmt: skip
    assert main([*words, "--out", str(folder.parent / "colour-run")]) == 0
    return folder, folder.parent / "colour-run"


def test_a_model_on_ones_own_images_says_what_it_chose(colors, tmp_path, capsys):
    folder, run = colors
    assert torchcaps.load(run).class_names == ("blue", "green", "red")
    words = ["train", "convnet-avg-small", "--data", f"folder:{folder},size=24"]
    assert main([*words, "--epochs", "1", "--out", str(tmp_path / "run")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for fact in ("48 training, 6 validation and 6 test images of 24x24 in 3 classes", "flip",
                 "1 epoch, batch size 4", "task classify"):  # fmt: skip
        assert fact in said
    spec = DataSpec(name=f"folder:{folder},size=24")
    assert auto_recipe("convnet-avg-small", data_of(spec), spec)[0].epochs == 60
    assert main(["train", "convnet-avg-small", "--data", f"folder:{folder / 'red'}"]) == 1
    assert "learns from labels" in capsys.readouterr().err


def test_a_set_without_the_first_class_is_scored_by_name(colors, tmp_path, capsys):
    folder, run = colors
    assert main(["eval", str(run), "--split", "all", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["n"] == 60 and whole["numbers"]["accuracy"] > 0.9
    fewer = paint(tmp_path / "fewer", ("green", "red"))
    words = ["eval", str(run), "--data", f"folder:{fewer},size=16", "--split", "all"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n"] == 40 and found["numbers"]["accuracy"] > 0.9
    assert [c["n"] for c in found["classes"]] == [0, 20, 20]
    assert np.array(found["confusion"]).sum() == 40
    assert main(words) == 0
    assert "green" in capsys.readouterr().out
    other = paint(tmp_path / "other", ("red", "violet"))
    assert main(["eval", str(run), "--data", f"folder:{other},size=16"]) == 1
    error = capsys.readouterr().err
    assert "does not know: violet" in error and "blue, green, red" in error


def test_two_runs_are_a_row(colors, capsys):
    _, run = colors
    other = shutil.copytree(run, run.with_name("colour-copy"))
    assert main(["eval", str(run), str(other), str(run)]) == 0  # named twice, it counts once
    assert "convnet-avg-small, 2 runs: accuracy" in capsys.readouterr().out


def test_weights_go_on_by_the_names_of_classes(colors, tmp_path, capsys):
    folder, run = colors
    held = torchcaps.load(run)
    config = {"in_channels": 3, "image_size": 16, "channels": (8, 8), "kernel_size": 3}
    model = torchcaps.create_model("convnet-avg-small", num_classes=2, **config)
    begun = init_weights(model, str(run), ("red", "blue"))
    assert begun.new == [] and set(begun.adapted) == {"classes matched by name"}
    head, old = model.state_dict()["head.0.weight"], held.state_dict()["head.0.weight"]
    assert (head == old[[2, 0]]).all()
    with pytest.raises(TorchcapsError, match="no weights for the classes violet.*--start-partly"):
        init_weights(model, str(run), ("red", "violet"))
    begun = init_weights(model, str(run), ("red", "violet"), partly=True)
    assert begun.new == ["head.0.weight", "head.0.bias"] and "new: head.0.weight" in str(begun)
    gray = torchcaps.create_model(
        "convnet-avg-small", num_classes=3, **{**config, "in_channels": 1}
    )
    begun = init_weights(gray, str(run), held.class_names)
    assert begun.adapted == {"color channels adapted": ["stem.0.weight"]}
    summed = held.state_dict()["stem.0.weight"].sum(1, keepdim=True)
    assert np.allclose(gray.state_dict()["stem.0.weight"], summed)
    words = ["train", "convnet-avg-small", "--data", f"folder:{folder},size=16", "--epochs", "1",
             "--model.channels", "8", "8", "--model.kernel-size", "3"]  # fmt: skip
    assert main([*words, "--from", str(run), "--out", str(tmp_path / "next")]) == 0
    assert "Initial weights: 6 tensors" in " ".join(capsys.readouterr().out.split())


def test_places_are_interpolated(tmp_path):
    small = {
        "width": 8,
        "depth": 1,
        "patch_size": 4,
        "num_types": 4,
        "pose_dim": 4,
        "decoder_pose_dim": 4,
    }
    first = torchcaps.create_model("mcae-vit", image_size=16, **small)
    first.save_pretrained(tmp_path)
    larger = torchcaps.create_model("mcae-vit", image_size=24, **small)
    begun = init_weights(larger, str(tmp_path))
    assert begun.adapted == {"positions interpolated": ["backbone.places"]}
    corner = larger.state_dict()["backbone.places"].reshape(6, 6, -1)[::5, ::5]
    held = first.state_dict()["backbone.places"].reshape(4, 4, -1)[::3, ::3]
    assert float((corner - held).abs().mean()) < 0.5 * float(held.abs().mean())


def test_fields_come_from_a_file(tmp_path, capsys):
    path = tmp_path / "fields.json"
    path.write_text(json.dumps({"epochs": 1, "optimizer": {"lr": 0.125}, "batch_size": 2000}))
    out = tmp_path / "run"
    words = ["train", "demo/convnet-avg", "--config", str(path), "--metrics"]
    assert main([*words, "--optimizer.ema", "0", "--out", str(out)]) == 0
    held = json.loads((out / "recipe.json").read_text())
    assert (held["epochs"], held["batch_size"], held["optimizer"]["lr"]) == (1, 2000, 0.125)
    assert held["optimizer"]["kind"] == "adam" and held["optimizer"]["ema"] == 0
    for text, code, said in (
        ("[]", 1, "not an object"),
        ("{", 1, "not a readable"),
        ('{"epoch": 1}', 2, "Did you mean 'epochs'"),
    ):
        path.write_text(text)
        assert main(words) == code
        assert said in capsys.readouterr().err


def test_a_model_is_told_its_size_by_name(colors):
    _, run = colors
    import torch

    with pytest.raises(TorchcapsError, match="made for images of 3x16x16.*got 3x16x24"):
        torchcaps.load(run)(torch.rand(1, 3, 16, 24))


@pytest.mark.parametrize("name", ["capsnet-small", "inverted-simple"])
def test_oblong_images(name, colors, tmp_path, capsys):
    folder, _ = colors
    few = ["--epochs", "1", "--batch-size", "24", "--out", str(tmp_path / "run")]
    assert main(["train", name, "--data", f"folder:{folder},size=24x32", *few]) == 0
    model = torchcaps.load(tmp_path / "run")
    assert model.config.image_shape == (3, 24, 32)
    assert len(model.predict(folder / "red" / "0.png")[0]) == 3
    assert main(["report", str(tmp_path / "run")]) == 0
    assert main(["train", "mcae", "--data", f"folder:{folder},size=24x32", *few[:-2]]) == 1
    assert "takes square images, not 24x32" in capsys.readouterr().err


def test_a_model_that_is_too_large_says_so_before_it_trains(colors, tmp_path, capsys, monkeypatch):
    from torchcaps.training import loop

    monkeypatch.setattr(loop, "MANY_PARAMETERS", 1000)
    folder, _ = colors
    words = ["train", "capsnet-small", "--data", f"folder:{folder},size=32", "--epochs", "1"]
    assert main([*words, "--batch-size", "24", "--out", str(tmp_path / "run")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "million parameters for 32x32 images" in said.partition("epoch 1/1")[0]
    task = json.loads((tmp_path / "run" / "recipe.json").read_text())["task"]
    assert task["reconstruction"] == pytest.approx(0.002 * 784 / 3072, rel=0.05)


def test_train_and_eval_state_what_to_compare_with(colors, tmp_path, capsys):
    """The majority class, a softmax regression and the interval; photographs get a ConvNet."""
    folder, run = colors
    assert main(["eval", str(run)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "6 images: accuracy" in said and "(95 % interval 0." in said
    assert "to compare: always 'blue': 0.3333; softmax regression on 16x16 pixels: 1.0000" in said
    other = paint(tmp_path / "other", COLORS, count=9)
    words = ["eval", str(run), "--data", f"folder:{other},size=16", "--split", "all", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    low, high = found["intervals_95"]["accuracy"]
    assert low < found["numbers"]["accuracy"] <= high and set(found["intervals_95"]) == {"accuracy"}
    known = found["reference"]  # fitted on the images of the run, scored on the others
    assert known["images"] == 27 and known["softmax_fitted_on"] == 48
    assert known["majority_accuracy"] == pytest.approx(1 / 3) and known["softmax_accuracy"] == 1.0

    words = ["train", "convnet-avg-small", "--data", f"folder:{folder},size=16", "--epochs", "1",
             "--model.channels", "4", "4", "--model.kernel-size", "3"]  # fmt: skip
    assert main([*words, "--out", str(tmp_path / "text")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "also train convnet-modern, the strongest ConvNet baseline" in said
    assert "always 'blue': 0.3333; softmax regression on 16x16 pixels: 1.0000" in said
    assert "95 % interval" in said
    assert main([*words, "--json", "--out", str(tmp_path / "json")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["reference"]["softmax_accuracy"] == 1.0
    accuracy = [r for r in record["results"] if r["metric"] == "accuracy" and r["split"] == "test"]
    assert accuracy[0]["n"] == 6 and len(accuracy[0]["interval_95"]) == 2
