"""The public functions: every kind of data and input that they take, and their errors."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import torchcaps
from tests.conftest import TINY_CAPSNET
from torchcaps.errors import TorchcapsError, TorchcapsWarning, UsageError


def fit(model="capsnet-small", data=None, **options):
    fields = {"epochs": 1, "batch_size": 20, "quiet": True, **options}
    return torchcaps.fit(model, data, **fields)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def arrays():
    """60 dark and bright images of 28x28 in three classes."""
    generator = np.random.default_rng(0)
    labels = np.arange(60) % 3
    images = (labels[:, None, None] * 100 + generator.integers(0, 50, (60, 28, 28))).astype("uint8")
    return images, labels


@pytest.fixture
def tiny():
    return torchcaps.create_model("capsnet", num_classes=3, **TINY_CAPSNET)


class Pairs(torch.utils.data.Dataset):
    classes = ["dark", "gray", "bright"]

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, n):
        return Image.fromarray(self.images[n]), int(self.labels[n])


class ClassLabel:
    names = ["dark", "gray", "bright"]


class ImageFeature:
    pass


ImageFeature.__name__ = "Image"


class HubDataset:
    """As Hugging Face's `datasets.Dataset` looks from outside."""

    def __init__(self, images, labels):
        self.features = {"image": ImageFeature(), "label": ClassLabel()}
        self.column_names = list(self.features)
        self.rows = [
            {"image": Image.fromarray(i), "label": int(n)}
            for i, n in zip(images, labels, strict=True)
        ]

    def __iter__(self):
        return iter(self.rows)

    def __len__(self):
        return len(self.rows)


def sources(images, labels, folder):
    """Every kind of data that `fit` takes, by name."""
    tensors = torch.from_numpy(images)[:, None], torch.from_numpy(labels)
    np.savez(folder / "data.npz", images=images, labels=labels)
    for row, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / "photos" / Pairs.classes[label]
        path.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path / f"{row}.png")
    halves = {"train": (images[:45], labels[:45]), "test": (images[45:], labels[45:])}
    return {
        "a spec string": f"folder:{folder / 'photos'},mode=L,size=28",
        "numpy arrays": (images, labels),
        "tensors": tensors,
        "float tensors": (tensors[0].float() / 255, tensors[1]),
        "an npz file": str(folder / "data.npz"),
        "npz contents": np.load(folder / "data.npz"),
        "a dict of splits": halves,
        "a torch Dataset": Pairs(images, labels),
        "a TensorDataset": TensorDataset(*tensors),
        "a DataLoader": DataLoader(TensorDataset(*tensors), batch_size=7, shuffle=True),
        "a Hugging Face Dataset": HubDataset(images, labels),
        "a Hugging Face DatasetDict": {
            "train": HubDataset(images[:45], labels[:45]),
            "validation": HubDataset(images[45:50], labels[45:50]),
            "test": HubDataset(images[50:], labels[50:]),
        },
        "an iterable": list(zip(images, labels, strict=True)),
        "names as labels": (images, np.array(Pairs.classes)[labels]),
    }


KINDS = list(sources.__doc__ and [
    "a spec string", "numpy arrays", "tensors", "float tensors", "an npz file", "npz contents",
    "a dict of splits", "a torch Dataset", "a TensorDataset", "a DataLoader",
    "a Hugging Face Dataset", "a Hugging Face DatasetDict", "an iterable", "names as labels",
])  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_fit_takes(kind, arrays, place, tiny):
    data = sources(*arrays, place)[kind]
    run = fit(tiny, data)
    assert run.status == "finished" and run.accuracy is not None
    assert run.model.config.num_classes == 3 and len(run.metrics) == 1
    if any(word in kind for word in ("Hugging", "torch Dataset", "names", "spec")):
        assert set(run.model.class_names) == set(Pairs.classes)
    assert torchcaps.evaluate(run)["n"] > 0


def test_a_name_is_built_for_the_data_and_chooses_the_rest(arrays, place):
    from torchcaps.cli import main

    run = torchcaps.fit("convnet-avg-small", arrays, epochs=1, quiet=True)
    recipe = run.recipe()
    assert recipe.model.num_classes == 3 and recipe.model.image_size == 28
    assert recipe.batch_size == 4 and recipe.data.augment == ("translate:2",)
    data = sources(*arrays, place)["a spec string"]
    torchcaps.fit("convnet-avg-small", data, out="one", epochs=1, quiet=True)
    words = ["train", "convnet-avg-small", "--data", data, "--epochs", "1", "--out", "two"]
    assert main(words) == 0
    one, two = (torchcaps.Run.open(name).recipe() for name in ("one", "two"))
    assert one == two


def test_an_instance_is_trained_in_place(arrays, place, tiny):
    before = {n: t.clone() for n, t in tiny.state_dict().items()}
    run = fit(tiny, arrays, optimizer={"lr": 1e-3})
    after = tiny.state_dict()
    assert any(not torch.equal(before[n], after[n]) for n in before)
    chosen = run.model.state_dict()
    assert all(torch.equal(after[n], chosen[n]) for n in after)
    assert tiny.class_names == ("0", "1", "2") and run.recipe().optimizer.lr == 1e-3


def test_training_starts_from_the_weights_of_the_instance(arrays, place, tiny):
    with torch.no_grad():
        for parameter in tiny.parameters():
            parameter.zero_()
    run = fit(tiny, arrays, optimizer={"lr": 0.0})
    assert all(not t.any() for n, t in run.model.state_dict().items() if "weight" in n)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"image_size": 32, "num_classes": 3}, "1x32x32.*has 1x28x28.*image_size=28"),
        ({"in_channels": 3, "num_classes": 3}, "3x28x28.*in_channels=1"),
        ({"num_classes": 7}, '7 classes.*has 3.*num_classes=3.*head="new"'),
    ],
)
def test_an_instance_of_other_sizes_is_refused(fields, message, arrays, place):
    model = torchcaps.create_model("capsnet", **{**TINY_CAPSNET, **fields})
    with pytest.raises(TorchcapsError, match=f"(?s){message}"):
        fit(model, arrays)


def test_pretrained_weights_get_a_new_head(arrays, place):
    model = torchcaps.create_model("capsnet-small.digits", pretrained=True)
    with pytest.raises(TorchcapsError, match='head="new"'):
        fit(model, arrays)
    stem = model.stem[0].weight.clone()
    run = fit(model, arrays, head="new", optimizer={"lr": 0.0})
    assert torch.equal(run.model.stem[0].weight, stem) and run.model.config.num_classes == 3


def test_callbacks_get_the_metrics_of_each_epoch_and_can_stop(arrays, place, tiny):
    lines = []
    run = fit(tiny, arrays, epochs=5, callbacks=[lambda m: lines.append(m) or len(lines) < 2])
    assert [line["epoch"] for line in lines] == [0, 1] and run.metrics == lines
    assert {"train_loss", "val_accuracy", "lr"} <= set(lines[0])


def test_class_weights_and_balanced_sampling(arrays, place, tiny):
    images, labels = arrays
    rows = np.flatnonzero((labels != 2) | (np.arange(60) % 4 == 0))
    skewed = images[rows], labels[rows]
    with pytest.warns(TorchcapsWarning, match="no test images: 2"):
        run = fit(tiny, skewed, class_weights="balanced", balanced=True)
    recipe = run.recipe()
    assert recipe.data.balanced and recipe.task.class_weights[2] > recipe.task.class_weights[0]
    with pytest.warns(TorchcapsWarning):
        fit(tiny, skewed, class_weights=[1, 1, 5])
    with pytest.raises(TorchcapsError, match="2 class weights, but memory has 3 classes"):
        fit(tiny, skewed, class_weights=[1, 2])
    with pytest.raises(UsageError, match="balanced"):
        fit(tiny, skewed, class_weights="even")


def test_balanced_epochs_have_every_class_equally_often(arrays):
    images, labels = arrays
    rows = np.flatnonzero((labels != 2) | (np.arange(60) % 6 == 2))
    data = torchcaps.data.as_dataset((images[rows], labels[rows]))
    loader = torchcaps.data.Loader(data, 6, balanced=True)
    seen = torch.cat([loader.batch(n).labels for n in range(loader.steps_per_epoch)])
    counts = torch.bincount(seen)
    assert counts.max() - counts.min() <= 6
    again = torchcaps.data.Loader(data, 6, balanced=True)
    assert torch.equal(again.batch(3).images, loader.batch(3).images)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"model": "capsent"}, "Unknown model 'capsent'. Did you mean 'capsnet'"),
        ({"model": 3}, "give a model's name, a torchcaps model or a Recipe"),
        ({"data": None}, "data="),
        ({"data": {"a": 1}}, "give 'train'"),
        ({"data": 5}, "data: give"),
        ({"data": (np.zeros((4, 8, 8), "uint8"), [0, 1])}, "4 images and 2 labels"),
        ({"data": (np.full((4, 8, 8), 3.0), [0, 1, 0, 1])}, "float from 0 to 1"),
        ({"epoch": 3}, "unknown field 'epoch'. Did you mean 'epochs'"),
        ({"lr": 3}, "Did you mean optimizer={'lr': …}"),
        ({"optimizer": {"rl": 1}}, "'rl'"),
        ({"head": "new"}, "model instance"),
    ],
)
def test_errors_name_arguments(arguments, message, arrays, place):
    options = {"model": "capsnet-small", "data": arrays, **arguments}
    with pytest.raises(TorchcapsError) as error:
        fit(options.pop("model"), options.pop("data"), **options)
    assert message in str(error.value) and "--" not in str(error.value)


def test_data_in_memory_is_asked_for_when_a_run_is_reopened(arrays, place, tiny):
    run = fit(tiny, arrays)
    assert torchcaps.evaluate(run)["n"] == 6
    torchcaps.report(run)
    reopened = torchcaps.Run.open(run.folder)
    with pytest.raises(TorchcapsError, match="Pass it again: data="):
        torchcaps.evaluate(reopened)
    assert torchcaps.evaluate(reopened, arrays)["n"] == 6
    assert torchcaps.resume(run.folder, data=arrays, quiet=True).finished


def test_evaluate_gives_metrics_by_name(arrays, place, tiny):
    run = fit(tiny, arrays)
    numbers = torchcaps.evaluate(run, metrics=["accuracy", "knn"])["numbers"]
    assert {"accuracy", "loss", "knn_accuracy"} <= set(numbers)
    model = torchcaps.create_model("capsnet-small.digits", pretrained=True)
    assert torchcaps.evaluate(model, "digits")["numbers"]["accuracy"] > 0.9
    assert torchcaps.evaluate("capsnet-small.digits")["numbers"]["accuracy"] > 0.9
    with pytest.raises(TorchcapsError, match="no data set of its own"):
        torchcaps.evaluate(torchcaps.create_model("capsnet", **TINY_CAPSNET))


@pytest.fixture(scope="module")
def digit():
    return torchcaps.create_model("capsnet-small.digits", pretrained=True)


def inputs(folder):
    pixels = torchcaps.data.load("digits").test.images[:3]
    for n, image in enumerate(pixels[:, 0].numpy()):
        Image.fromarray(image).save(folder / f"{n}.png")
    files = [folder / f"{n}.png" for n in range(3)]
    return {
        "a path": (str(files[0]), 1), "a list of paths": (files, 3), "a folder": (folder, 3),
        "a Pillow image": (Image.fromarray(pixels[0, 0].numpy()), 1),
        "Pillow images": ([Image.fromarray(p.numpy()) for p in pixels[:, 0]], 3),
        "numpy": (pixels.numpy(), 3), "numpy, channels last": (pixels.movedim(1, -1).numpy(), 3),
        "uint8 tensor": (pixels, 3), "float tensor": (pixels.float() / 255, 3),
        "one gray image": (pixels[0, 0], 1), "one image": (pixels[0], 1),
    }  # fmt: skip


INPUTS = [
    "a path", "a list of paths", "a folder", "a Pillow image", "Pillow images", "numpy",
    "numpy, channels last", "uint8 tensor", "float tensor", "one gray image", "one image",
]  # fmt: skip


@pytest.mark.parametrize("kind", INPUTS)
def test_predict_and_embed_take(kind, digit, tmp_path):
    images, count = inputs(tmp_path)[kind]
    predictions = torchcaps.predict(digit, images, top_k=3, batch_size=2)
    assert [len(classes) for classes in predictions] == [3] * count
    expected = torchcaps.predict(digit, inputs(tmp_path)["uint8 tensor"][0])[:count]
    assert [p[0].name for p in predictions] == [p[0].name for p in expected]
    assert torchcaps.embed(digit, images, batch_size=2).shape[0] == count


@pytest.mark.parametrize(
    "images, message",
    [
        (torch.full((1, 1, 28, 28), 2.0), "from 2 to 2"),
        (torch.full((1, 1, 28, 28), float("nan")), "float from 0 to 1"),
        (torch.zeros(1, 1, 28, 28, dtype=torch.int64), "uint8"),
        (torch.zeros(1, 1, 20, 20), "1x20x20"),
        ("nowhere.png", "no such file"),
        ([], "Give an image"),
    ],
)
def test_wrong_images_are_refused(images, message, digit):
    with pytest.raises(TorchcapsError, match=message):
        torchcaps.predict(digit, images)


def test_a_run_has_metrics_results_and_a_model(arrays, place, tiny):
    run = fit(tiny, arrays)
    assert run.metrics[0]["epoch"] == 0 and isinstance(run.model, torchcaps.models.Model)
    assert {"data", "split", "metric", "value"} <= set(run.results[0])
    assert "finished" in repr(run) and "test accuracy" in repr(run) and len(repr(run)) < 200


def test_outputs_show_shapes(digit):
    text = repr(digit(torch.zeros(2, 1, 28, 28)))
    assert "logits=[2,10]" in text and "tensor(" not in text and len(text) < 300
    assert "poses=[2,10,16]" in text
    capsules = digit(torch.zeros(2, 1, 28, 28), coupling=True).layers[-1]
    assert repr(capsules) == "Capsules(poses=[2,10,16], coupling=[2,144,10])"


def test_public_names_and_packages():
    code = (
        "import torchcaps; "
        "[getattr(torchcaps, n) for n in dir(torchcaps)]; "
        "assert not [n for n in dir(torchcaps) if n.startswith('_') and n != '__version__']; "
        "torchcaps.routing.dynamic_routing, torchcaps.losses.margin_loss; "
        "torchcaps.functional.squash, torchcaps.metrics.METRICS"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(dir(torchcaps)) == len(set(dir(torchcaps)))
    assert "import torchcaps" in (torchcaps.__doc__ or "")[:300]


def test_a_misspelled_router_option_is_refused():
    from torchcaps.layers import DenseCaps, make_router

    with pytest.raises(UsageError, match="EM has no option 'num_itres'. Did you mean 'num_iters'"):
        make_router("em", num_itres=7)
    with pytest.raises(TypeError):
        DenseCaps(8, 4, 3, 4)  # pyright: ignore


def test_plot_returns_a_figure(arrays, place, tiny):
    run = fit(tiny, arrays)
    figure = torchcaps.plot("traversal", run, units=2, out=place / "f.png")
    assert figure.axes and (place / "f.png").exists()
    assert set(torchcaps.plot("curves", run)) == {"", "parts", "accuracy"}
    with pytest.raises(UsageError, match="no option 'unit'"):
        torchcaps.plot("traversal", run, unit=2)


def test_a_recipe_runs_with_other_data(arrays, place, tiny_recipe):
    recipe = replace(
        tiny_recipe, epochs=1, batch_size=20, data=replace(tiny_recipe.data, per_class=0)
    )
    run = torchcaps.fit(recipe, arrays, quiet=True)
    assert run.recipe().data.name == "memory" and run.recipe().model.num_classes == 3


EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_quickstart_runs(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(sys, "argv", ["quickstart.py"])
    import quickstart

    assert quickstart.main(tmp_path, epochs=2) > 0.3


def test_a_routing_of_ones_own_from_the_command_line(place, tiny_recipe, capsys):
    """In processes of their own: a plug-in stays loaded."""
    plugin = str(EXAMPLES / "my_routing.py")
    torchcaps_command = [sys.executable, "-m", "torchcaps.cli"]
    train = ["train", "demo/capsnet", "--model.routing", "sharp", "--plugin", plugin, "--out", "r"]
    train += ["--epochs", "1", "--model.channels", "8", "--model.num-types", "2", "--metrics"]
    train += ["--data.per-class", "20"]
    for words in (train, ["eval", "r", "--plugin", plugin], ["report", "r", "--plugin", plugin]):
        done = subprocess.run([*torchcaps_command, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    done = subprocess.run([*torchcaps_command, "eval", "r"], capture_output=True, text=True)
    assert done.returncode == 1 and f"add --plugin {plugin}" in done.stderr
    assert len(done.stderr.splitlines()) == 1
