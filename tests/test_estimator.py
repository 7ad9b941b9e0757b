"""CapsuleClassifier behaves as scikit-learn's estimators do; data of Python's own trains a run."""

import signal
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import torchcaps
from torchcaps import data
from torchcaps.errors import Interrupted, TorchcapsError, TorchcapsWarning
from torchcaps.estimator import CapsuleClassifier
from torchcaps.training.loop import resume
from torchcaps.training.state import Training

FAILS: dict[str, str] = {}
"""Checks that are expected to fail, each with its reason."""


@pytest.mark.filterwarnings("ignore:X has .* no square image")  # the checks' data are no images
@parametrize_with_checks(
    [CapsuleClassifier("convnet-avg-small", epochs=4)], expected_failed_checks=lambda _: FAILS
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@cache
def few(count):
    digits = data.load("digits").train
    rows = torch.linspace(0, len(digits) - 1, count).long()  # of every class
    return digits.images[rows, 0].numpy(), digits.labels[rows].numpy()


def test_images_of_every_layout_give_the_same_answer():
    images, labels = few(60)
    names = np.array([f"digit {n}" for n in labels])
    made = [
        CapsuleClassifier("convnet-avg-small", epochs=1).fit(x, names).predict_proba(x)
        for x in (images, images[..., None], images.reshape(60, -1), images / 255.0)
    ]
    for other in made[1:]:
        np.testing.assert_allclose(other, made[0], atol=1e-4)
    np.testing.assert_allclose(made[0].sum(1), 1, rtol=1e-5)


def test_what_a_classifier_cannot_take_is_said():
    images, labels = few(60)
    fitted = CapsuleClassifier("convnet-avg-small", epochs=1).fit(images, labels)
    for other in (images[0], images[:, :, :14], images[..., None]):
        with pytest.raises(ValueError):
            fitted.predict(other)
    for wrong in ({"epochs": 0}, {"batch_size": -4}, {"lr": np.nan}, {"model": "sparse-small"}):
        with pytest.raises((ValueError, TorchcapsError)):
            CapsuleClassifier(**{"model": "convnet-avg-small", "epochs": 1, **wrong}).fit(
                images, labels
            )
    seeded = np.random.RandomState(3)
    assert CapsuleClassifier("convnet-avg-small", 1, random_state=seeded).fit(images, labels)


def test_columns_and_range_are_checked_against_fit():
    images, labels = few(60)
    rows = images.reshape(60, -1) / 255
    fitted = CapsuleClassifier("convnet-avg-small", epochs=1).fit(rows, labels)
    with pytest.raises(ValueError, match="785 features.*784"):
        fitted.predict(np.pad(rows, ((0, 0), (0, 1))))
    with pytest.raises(ValueError, match="0 to 255; `fit` saw 0 to 1"):
        fitted.predict(rows * 255)
    with pytest.warns(TorchcapsWarning, match="Are both scaled in the same way"):
        fitted.predict(rows / 255)
    with pytest.warns(TorchcapsWarning, match="785 columns.*no square image.*29x29"):
        CapsuleClassifier("convnet-avg-small", epochs=1).fit(np.pad(rows, ((0, 0), (0, 1))), labels)


def test_the_scale_of_a_pixel_changes_nothing():
    images, labels = few(60)
    rows = images.reshape(60, -1) / 255
    made = [
        CapsuleClassifier("convnet-avg-small", epochs=1).fit(x, labels).predict_proba(x)
        for x in (rows, StandardScaler().fit_transform(rows), 1000 * rows - 7)
    ]
    for other in made[1:]:
        np.testing.assert_allclose(other, made[0], atol=1e-4)


@pytest.mark.slow
def test_it_reaches_logistic_regression_after_standard_scaler():
    """Pixels from 0 to 1 had 0.93 and standardized ones 0.64 when only all pixels were scaled."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.data))
    x, y = StandardScaler().fit_transform(digits.data)[order], digits.target[order]
    linear = LogisticRegression(max_iter=1000).fit(x[:600], y[:600])
    capsules = CapsuleClassifier(epochs=8).fit(x[:600], y[:600])
    assert capsules.score(x[600:1200], y[600:1200]) > linear.score(x[600:1200], y[600:1200])


def test_it_learns_in_a_pipeline():
    images, labels = few(400)
    rows = images.reshape(400, -1).astype(float)
    classifier = make_pipeline(MinMaxScaler(), CapsuleClassifier(epochs=6, lr=3e-3))
    assert cross_val_score(classifier, rows, labels, cv=2).mean() > 0.5
    with pytest.raises(ValueError, match="one class"):
        CapsuleClassifier().fit(images[:3], ["a", "a", "a"])


class Pairs(torch.utils.data.Dataset):
    """As torchvision's are: an image of Pillow and a number."""

    def __len__(self):
        return 40

    def __getitem__(self, row):
        from PIL import Image

        images, labels = few(40)
        return Image.fromarray(images[row]), int(labels[row])


def test_data_of_pythons_own():
    images, labels = few(40)
    forms = [
        (images, labels),
        (torch.from_numpy(images)[:, None], torch.from_numpy(labels)),
        (images[..., None] / 255.0, labels.tolist()),
        Pairs(),
        ((i, n) for i, n in zip(images, labels, strict=True)),
    ]
    made = [data.as_dataset(form) for form in forms]
    for one in made:
        assert one.image_shape == (1, 28, 28) and one.num_classes == labels.max() + 1
        assert torch.equal(one.train.images, made[0].train.images)
        assert torch.equal(one.test.labels, made[0].test.labels)
    named = data.as_dataset((images, [f"n{n}" for n in labels]), test=(images[:5], ["n1"] * 5))
    assert named.classes[0] == "n0" and len(named.test) == 5
    for form in ((images, labels), (images[:9], labels[:9])):
        zero, one = (data.as_dataset(form, seed=seed) for seed in (0, 1))
        assert torch.equal(zero.test.images, one.test.images), "the same for every seed"
    same = data.as_dataset(named)
    assert same is named


@pytest.mark.parametrize(
    "source, said",
    [
        ((np.zeros((4, 8, 8), bool), [0, 1, 0, 1]), "of torch.bool; give uint8, float"),
        ((np.full((4, 8, 8), np.nan), [0, 1, 0, 1]), "not finite"),
        ((np.full((4, 8, 8), 7.0), [0, 1, 0, 1]), "from 7 to 7"),
        ((np.zeros((4, 8, 8)), [0, 1, 0]), "4 images and 3 labels"),
        ((np.zeros((4, 8, 8)), [0, -1, 0, 1]), "whole numbers from 0"),
        ((np.zeros((4, 8)), [0, 1, 0, 1]), r"give \[N,H,W,C\]"),
        ([(np.zeros((8, 8)), 0), (np.zeros((9, 9)), 1)], "several shapes"),
        ((np.zeros((0, 8, 8), np.uint8), []), "no images"),
        (7, "an iterable of"),
        ([1, 2], "an iterable of"),
    ],
    ids=str,
)
def test_data_that_cannot_be_taken_is_said(source, said):
    with pytest.raises(TorchcapsError, match=said):
        data.as_dataset(source)


def test_a_run_on_data_of_pythons_own(tiny_recipe, tmp_path):
    images, labels = few(300)
    names = [f"digit {n}" for n in labels]
    recipe = replace(tiny_recipe, data=replace(tiny_recipe.data, per_class=0))
    run = torchcaps.fit(recipe, out=tmp_path / "run", data=(images, names), quiet=True)
    model = torchcaps.load(run.folder)
    assert model.class_names[3] == "digit 3"
    assert resume(run.folder).record()["recipe"]["data"]["name"] == "memory"
    original = Training.step

    def stopping(self):
        original(self)
        signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "step", stopping)
        with pytest.raises(Interrupted):
            torchcaps.fit(recipe, out=tmp_path / "cut", data=(images, names), quiet=True)
    with pytest.raises(TorchcapsError, match="in memory and is gone: pass it again"):
        resume(tmp_path / "cut")
    with pytest.raises(TorchcapsError, match="other files than when the run began"):
        torchcaps.resume(tmp_path / "cut", data=(255 - images, names), quiet=True)
    again = torchcaps.resume(tmp_path / "cut", data=(images, names), quiet=True)
    assert again.record()["results"] == run.record()["results"]
    run.record_file.unlink()
    with pytest.raises(TorchcapsError, match="was finished"):  # it keeps no optimizer state
        torchcaps.resume(run.folder, data=(images, names), quiet=True)


@pytest.mark.filterwarnings("ignore:The `srun` command")
def test_a_model_in_ones_own_loop_and_in_lightnings():
    from lightning_fabric import Fabric

    images, labels = few(32)
    x, y = torch.from_numpy(images)[:, None] / 255, torch.from_numpy(labels)
    model = torchcaps.create_model("capsnet-small")
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    fabric = Fabric(accelerator="cpu")
    model, optimizer = fabric.setup(model, optimizer)
    losses = []
    for _ in range(8):
        loss = torch.nn.functional.cross_entropy(model(x).logits, y)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
