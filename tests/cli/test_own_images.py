"""One's own images on the command line: a model's name is enough, and classes have names."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import torchcaps
from torchcaps.cli import main
from torchcaps.errors import TorchcapsError, TorchcapsWarning, UsageError
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


def test_few_labels_decide_epochs_and_batch_size(colors, tmp_path, capsys, monkeypatch):
    folder, _ = colors
    words = ["train", "convnet-avg-small", "--data", f"folder:{folder},size=16", "--epochs", "2",
             "--model.channels", "4", "4", "--model.kernel-size", "3"]  # fmt: skip
    assert main([*words, "--data.per-class", "3", "--out", str(tmp_path / "run"), "--json"]) == 0
    said = capsys.readouterr()
    assert "9 training, 6 validation and 6 test images" in " ".join(said.err.split())
    record = json.loads(said.out)
    assert record["recipe"]["batch_size"] == 4 and record["recipe"]["data"]["per_class"] == 3
    assert {one["fitted_on"] for one in record["reference"]["baselines"]} == {0, 9}
    monkeypatch.chdir(tmp_path)
    images, labels = torch.rand(60, 1, 28, 28), torch.arange(60) % 3
    few = torchcaps.fit(
        "convnet-avg-small", (images, labels), per_class=5, epochs=1, quiet=True, out="few"
    )
    assert few.recipe().batch_size == 4 and few.recipe().data.per_class == 5


def test_a_model_that_is_too_large_is_one_clear_error(tmp_path, capsys):
    folder = paint(tmp_path / "photos", map(str, range(12)), count=4)
    words = ["train", "capsnet", "--data", f"folder:{folder},size=224"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert "A capsnet for 3x224x224 images and 12 classes would have 691.9 million" in error
    assert "capsnet with --model.grid 7 --model.reconstruction none: " in error
    assert "Traceback" not in error and not (tmp_path / "run").exists()


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


def test_another_folder_without_splits_is_evaluated_whole(colors, tmp_path, capsys):
    folder, run = colors
    fewer = paint(tmp_path / "fewer", ("green", "red"))
    assert main(["eval", str(run), "--data", f"folder:{fewer},size=16"]) == 0
    said = capsys.readouterr()
    assert "all, 40 images" in said.out and "No images of: blue." in said.err
    own = torchcaps.evaluate(run)
    assert (own["split"], own["n"]) == ("test", 6)
    for name in (f"folder:{folder.parent}/../{folder.parent.name}/{folder.name},size=16",
                 f"folder:{folder},size=16,skip_broken=true"):  # fmt: skip
        assert torchcaps.evaluate(run, name)["split"] == "test", "the run learned from the others"
    shutil.copytree(fewer, tmp_path / "split/train")
    shutil.copytree(fewer / "red", tmp_path / "split/test/red")
    split = torchcaps.evaluate(run, f"folder:{tmp_path / 'split'},size=16")
    assert (split["split"], split["n"]) == ("test", 20)
    images = np.zeros((30, 16, 16, 3), np.uint8)
    assert torchcaps.evaluate(run, (images, ["red"] * 30))["n"] == 30


def test_arrays_that_a_run_learned_from_are_not_all_test_images(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (40, 28, 28), dtype=np.uint8)
    labels = [0, 1] * 20
    run = torchcaps.fit(
        "convnet-avg-small", data=(images, labels), epochs=1, out=tmp_path / "run", quiet=True
    )
    for model in (run, run.model):
        assert torchcaps.evaluate(model, (images, labels))["n"] == 4
        other = torchcaps.evaluate(model, (255 - images, labels))
        assert other["n"] == 40 and "note" not in other


def test_a_folder_is_suggested_by_its_name(tmp_path, monkeypatch, capsys):
    paint(tmp_path / "edge", COLORS, count=1)
    monkeypatch.chdir(tmp_path)
    assert main(["train", "capsnet-small", "--data", "edge"]) == 2
    assert "For this folder of images: folder:edge." in capsys.readouterr().err
    with pytest.raises(UsageError, match="folder:edge,size=16"):
        torchcaps.data.load("edge,size=16")


def test_a_class_that_is_never_tested_is_named(tmp_path, capsys):
    folder = paint(tmp_path / "edge", COLORS, count=10)
    paint(folder, ("lonely",), count=1)
    words = ["train", "convnet-avg-small", "--data", f"folder:{folder},size=16", "--epochs", "1"]
    assert main([*words, "--model.kernel-size", "3", "--out", str(tmp_path / "run")]) == 0
    error = capsys.readouterr().err
    assert "warning: folder:" in error and "classes with a single image: lonely." in error
    assert "classes with no test images: lonely." in error


@pytest.fixture(scope="module")
def microscope(tmp_path_factory):
    """A run on 16-bit files whose two classes differ by brightness, 12 bits deep."""
    folder = tmp_path_factory.mktemp("deep") / "photos"
    draw = np.random.default_rng(0)
    for name, level in (("dark", 400), ("light", 3200)):
        (folder / name).mkdir(parents=True)
        for number in range(20):
            pixels = (level + draw.integers(-99, 99, (16, 16))).astype(np.uint16)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    model = torchcaps.create_model(
        "convnet-avg-small", image_size=16, num_classes=2, channels=(8, 8), kernel_size=3
    )
    run = torchcaps.fit(
        model, data=f"folder:{folder},size=16,mode=L", epochs=12, quiet=True,
        out=folder.parent / "run", optimizer={"ema": 0.0, "lr": 0.01},
    )  # fmt: skip
    assert model.value_range == (0, 4095)
    return folder, run


def test_a_model_keeps_the_range_of_its_images(microscope, tmp_path, capsys):
    folder, run = microscope
    model = torchcaps.load(run.folder)
    config = json.loads((run.model_folder / "config.json").read_text())
    assert model.value_range == (0, 4095) and config["range"] == [0, 4095]
    assert "16-bit and float files: 0..4095, clipped" in config["preprocessing"]
    model.save_pretrained(tmp_path / "saved")
    assert torchcaps.load(tmp_path / "saved").value_range == (0, 4095)
    assert "0..4095 (" not in capsys.readouterr().err
    files = [folder / "dark/0.png", folder / "light/0.png"]
    said = torchcaps.predict(run, files)
    assert [s[0].name for s in said] == ["dark", "light"]
    opened = [Image.open(file) for file in files]
    assert torchcaps.predict(run, opened) == said
    arrays = np.stack([np.asarray(image) for image in opened]).astype(np.int32)
    assert torchcaps.predict(run, arrays) == said
    assert np.array_equal(torchcaps.embed(run, files), torchcaps.embed(run, arrays))
    with pytest.raises(TorchcapsError, match=r"float from 0 to 1 .*with 0\.\.4095 as 0 to 1"):
        torchcaps.predict(run, arrays.astype(np.float32))


def test_values_outside_the_range_are_clipped_with_a_warning(microscope, tmp_path, capsys):
    _, run = microscope
    for name in ("dark", "light"):
        (tmp_path / "bright" / name).mkdir(parents=True)
        for n in range(6):
            pixels = np.full((16, 16), 60000 if name == "light" else 300, np.uint16)
            Image.fromarray(pixels).save(tmp_path / "bright" / name / f"{n}.png")
    bright = tmp_path / "bright/light/0.png"
    assert main(["predict", str(run.folder), str(bright)]) == 0
    said = capsys.readouterr()
    assert "light" in said.out
    assert said.err == (
        "torchcaps: warning: Some images have values outside the range 0..4095 that the model was "
        "trained with; they are clipped.\n"
    )
    with pytest.warns(TorchcapsWarning, match="clipped"):
        torchcaps.embed(run, np.full((1, 16, 16), 5000))
    # the range of the model, not that of the other folder, which would be 16 bits
    result = torchcaps.evaluate(run, f"folder:{tmp_path / 'bright'},size=16,mode=L")
    assert result["numbers"]["accuracy"] == 1 and result["n"] == 12 and "note" not in result
    result = torchcaps.evaluate(run, f"folder:{tmp_path / 'bright'},size=16,mode=L,range=0..9")
    assert "has the range 0..9; the model was trained with 0..4095" in result["note"]


def test_a_model_of_8_bits_warns_of_deeper_images(colors, microscope):
    files = [microscope[0] / "dark/0.png"]
    for images in (files, [Image.open(file) for file in files]):
        with pytest.warns(TorchcapsWarning, match=r"trained on 8 bits.*0\.\.65535"):
            torchcaps.predict(colors[1], images)


def test_the_plan_says_the_range(microscope, tmp_path, capsys):
    folder, _ = microscope
    spec = DataSpec(name=f"folder:{folder},size=16,mode=L")
    recipe, plan = auto_recipe("convnet-avg-small", data_of(spec), spec)
    assert "Gray values 0..4095; range=LO..HI sets another." in plan(recipe)


def test_a_damaged_range_is_refused(microscope, tmp_path):
    _, run = microscope
    for value in ([0], [5, 5], "0..9", [0, 1e999], [None, 1], {"a": 1}):
        shutil.copytree(run.model_folder, tmp_path / "model", dirs_exist_ok=True)
        config = json.loads((tmp_path / "model/config.json").read_text()) | {"range": value}
        (tmp_path / "model/config.json").write_text(json.dumps(config))
        with pytest.raises(TorchcapsError, match="config.json has range="):
            torchcaps.load(tmp_path / "model")


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
    """Baselines with their intervals, and who wins; photographs get a ConvNet."""
    folder, run = colors
    assert main(["eval", str(run)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "6 images: accuracy" in said and "(95 % interval 0." in said
    interval = "(95 % interval 0.6097 to 1.0000)"
    assert "baseline: majority class 0.3333 (95 % interval" in said
    assert f"baseline: softmax linear probe, 16x16 pixels 1.0000 {interval}" in said
    assert "This model is level with the best baseline (" in said
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
    assert f"same test images: nearest class mean, 16x16 pixels 1.0000 {interval}" in said
    assert "points below the best baseline (nearest class mean, 16x16 pixels: 100.00 %)" in said
    assert "95 % interval" in said
    assert main([*words, "--json", "--out", str(tmp_path / "json")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["reference"]["softmax_accuracy"] == 1.0
    accuracy = [r for r in record["results"] if r["metric"] == "accuracy" and r["split"] == "test"]
    assert accuracy[0]["n"] == 6 and len(accuracy[0]["interval_95"]) == 2


def test_a_run_without_labels_is_compared_with_no_classifier(colors, tmp_path, capsys):
    folder, _ = colors
    words = ["train", "vae", "--data", f"folder:{folder},size=28,mode=L", "--steps", "2",
             "--batch-size", "12", "--model.hidden", "8", "8"]  # fmt: skip
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "baseline" not in said and "This model" not in said
