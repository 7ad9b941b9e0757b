"""Every file reader on a small file of its format, checked against what was written."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data import files
from torchcaps import data
from torchcaps.data import images as pictures
from torchcaps.data.sets import affnist, cifar, dsprites, mnist, smallnorb, svhn
from torchcaps.errors import TorchcapsError


@pytest.mark.parametrize("zipped", [True, False])
def test_idx(tmp_path, zipped):
    files.mnist(tmp_path, zipped=zipped)
    loaded = mnist.load_idx("mnist", tmp_path, 0, mnist.DIGITS, (), mnist.MNIST)
    assert len(loaded.train) + len(loaded.val) == 40 and len(loaded.test) == 10
    assert loaded.test.labels.tolist() == list(range(10))


def test_idx_pixels_come_back(tmp_path):
    array = files.RNG.integers(0, 256, (3, 5, 7), dtype=np.uint8)
    files.idx(tmp_path / "a", array)
    assert np.array_equal(mnist.read_idx(tmp_path / "a", 3).numpy(), array)


def test_a_wrong_checksum_is_an_error(tmp_path):
    files.mnist(tmp_path)
    with pytest.raises(TorchcapsError, match="sha256"):
        data.load("mnist", tmp_path)


def test_cifar_binary(tmp_path):
    pixels, labels = files.cifar_rows(7)
    (tmp_path / "a.bin").write_bytes(np.concatenate([labels[:, None], pixels], 1).tobytes())
    split = cifar.read_binary(tmp_path / "a.bin", 1)
    assert np.array_equal(split.images.numpy().reshape(7, 3072), pixels)
    assert split.labels.tolist() == labels.tolist()
    # CIFAR-100 has a coarse label before the fine one
    both = np.concatenate([labels[:, None] * 0, labels[:, None], pixels], 1)
    (tmp_path / "b.bin").write_bytes(both.tobytes())
    assert cifar.read_binary(tmp_path / "b.bin", 2).labels.tolist() == labels.tolist()


def test_cifar_python(tmp_path):
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        pixels, labels = files.cifar_python(tmp_path / "cifar-10-batches-py" / name, b"labels")
    loaded = data.load("cifar10", tmp_path)
    assert len(loaded.train) + len(loaded.val) == 100
    assert np.array_equal(loaded.test.images.numpy().reshape(-1, 3072), pixels)
    assert loaded.test.labels.tolist() == labels.tolist()
    for name in ("train", "test"):
        files.cifar_python(tmp_path / "cifar-100-python" / name, b"fine_labels", 200)
    assert data.load("cifar100", tmp_path).num_classes == 100


def test_svhn_calls_ten_zero(tmp_path):
    for name in ("train", "test"):
        images = files.svhn(tmp_path / f"svhn/{name}_32x32.mat")
    loaded = data.load("svhn", tmp_path)
    assert loaded.test.labels.tolist() == [(i % 10 + 1) % 10 for i in range(30)]
    assert np.array_equal(loaded.test.images[4].numpy(), images[:, :, :, 4].transpose(2, 0, 1))
    assert svhn.read_svhn(tmp_path / "svhn/test_32x32.mat").images.shape == (30, 3, 32, 32)


def test_affnist(tmp_path):
    for name in ("training_batches", "validation_batches", "test_batches"):
        for number in (10, 2):
            images = files.affnist(tmp_path / f"affnist/{name}/{number}.mat")
    loaded = data.load("affnist", tmp_path)
    assert len(loaded.test) == 24 and loaded.image_shape == (1, 40, 40)
    first = affnist.read_affnist(tmp_path / "affnist/test_batches/2.mat")
    assert np.array_equal(first.images[5].numpy().ravel(), images[:, 5])
    assert torch.equal(loaded.test.images[:12], first.images)
    assert set(first.factors) >= {"rotation", "translate_y"}


def test_smallnorb_novel_views_are_never_seen_in_training(tmp_path):
    files.smallnorb(tmp_path)
    assert data.load("smallnorb", tmp_path).image_shape == (2, 96, 96)
    for factor, seen in (
        ("azimuth", smallnorb.SEEN_AZIMUTHS),
        ("elevation", smallnorb.SEEN_ELEVATIONS),
    ):
        loaded = data.load(f"smallnorb-{factor}", tmp_path)
        for split in (loaded.train, loaded.val):
            assert set(split.factors[factor].tolist()) == set(seen)
        assert not set(loaded.test.factors[factor].tolist()) & set(seen)
    loaded = data.load("smallnorb-azimuth", tmp_path)
    assert torch.equal(loaded.test.images[:, 0, 0, 0].long(), loaded.test.factors["azimuth"])
    seen = data.load("smallnorb-azimuth,seen=true", tmp_path)
    assert set(seen.test.factors["azimuth"].tolist()) == set(smallnorb.SEEN_AZIMUTHS)
    assert torch.equal(seen.train.images, loaded.train.images)


def test_smallnorb_gives_one_eye_of_each_pair(tmp_path):
    files.smallnorb(tmp_path)
    both, right = (data.load(f"smallnorb{end}", tmp_path) for end in ("", ",eye=1"))
    assert right.image_shape == (1, 96, 96) and len(right.test) == len(both.test)
    assert torch.equal(right.test.images, both.test.images[:, 1:])
    for options in ("eye=2", "eye=0,crop=32"):
        with pytest.raises(TorchcapsError, match="eye="):
            data.load(f"smallnorb-azimuth,{options}", tmp_path)


def test_smallnorb_validates_on_a_toy_that_training_lacks(tmp_path):
    files.smallnorb(tmp_path)
    loaded = data.load("smallnorb,crop=32,toy=0", tmp_path)
    assert set(loaded.train.factors["instance"].tolist()) == {1}
    assert set(loaded.val.factors["instance"].tolist()) == {0}
    assert set(loaded.val.labels.tolist()) == set(range(5))
    assert len(loaded.train) == len(loaded.val) == 5 * 9 * 18 * 2
    with pytest.raises(TorchcapsError, match=r"no toy 7 .* \[0, 1\]"):
        data.load("smallnorb,toy=7", tmp_path)
    with pytest.raises(TorchcapsError, match="copy without poses"):
        data.load("smallnorb-azimuth,toy=0", tmp_path)


def test_smallnorb_copy_without_train_poses_holds_toys_out(tmp_path):
    files.smallnorb(tmp_path / "original")
    original = data.load("smallnorb", tmp_path / "original").test
    arrays = {"test_images": original.images.numpy(), "train_images": original.images.numpy()}
    for part in ("train", "test"):
        arrays[f"{part}_category"] = original.labels.numpy().astype(np.uint8)
        arrays[f"{part}_instance"] = original.factors["instance"].numpy().astype(np.uint8)
    arrays["test_azimuth"] = original.factors["azimuth"].numpy().astype(np.uint8) // 2
    arrays["test_elevation"] = original.factors["elevation"].numpy().astype(np.uint8)
    (tmp_path / "copy/smallnorb").mkdir(parents=True)
    np.savez(tmp_path / "copy/smallnorb/smallnorb.npz", **arrays)
    loaded = data.load("smallnorb-azimuth", tmp_path / "copy")
    assert set(loaded.train.factors["azimuth"].tolist()) == set(smallnorb.SEEN_AZIMUTHS)
    for toy, name in ((1, "smallnorb-azimuth"), (0, "smallnorb-azimuth,toy=0")):
        loaded = data.load(name, tmp_path / "copy")
        assert set(loaded.test.factors["instance"].tolist()) == {toy}
        for split in (loaded.train, loaded.val):
            assert set(split.factors["instance"].tolist()) == {1 - toy}
    del arrays["train_instance"]
    np.savez(tmp_path / "copy/smallnorb/smallnorb.npz", **arrays)
    with pytest.raises(TorchcapsError, match="no toy 0"):
        data.load("smallnorb,toy=0", tmp_path / "copy")


def test_dsprites(tmp_path):
    images = files.dsprites(tmp_path / "a.npz")
    split = dsprites.read_dsprites(tmp_path / "a.npz")
    assert np.array_equal(split.images[:, 0].numpy(), images * 255)
    assert split.labels.tolist() == [i % 3 for i in range(30)]
    assert set(split.factors) == {"scale", "orientation", "x", "y"}


def test_dsprites_has_the_same_test_images_for_every_seed(tmp_path, monkeypatch):
    files.dsprites(tmp_path / dsprites.DSPRITES[0].path)
    monkeypatch.setattr(dsprites, "DSPRITES", (replace(dsprites.DSPRITES[0], sha256=None),))
    zero, one = (dsprites.dsprites(tmp_path, seed=seed) for seed in (0, 1))
    assert [len(s) for s in (one.train, one.val, one.test)] == [24, 3, 3]

    def factors(split):
        return set(zip(*(v.tolist() for v in split.factors.values()), strict=True))

    assert factors(zero.test) == factors(one.test) and factors(zero.val) != factors(one.val)
    assert not factors(one.test) & (factors(one.train) | factors(one.val))


def write_tree(root, splits=("",), classes=("cat", "dog"), count=12):
    modes = ("RGB", "L", "RGBA", "P", "I;16", "CMYK")
    for split in splits:
        for c, name in enumerate(classes):
            target = root / split / name
            target.mkdir(parents=True)
            for i in range(count):
                mode = modes[i % len(modes)]
                size = (20 + 3 * i, 50 - 2 * i)
                if mode == "I;16":
                    values = np.full(size[::-1], 257 * 100 * c, np.uint16)
                    image, suffix = Image.fromarray(values), "png"
                else:
                    image = Image.new("RGB", size, (100 * c,) * 3).convert(mode)
                    suffix = "tif" if mode == "CMYK" else "png"
                image.save(target / f"{i}.{suffix}")


def test_folder_of_any_sizes_and_modes(tmp_path):
    write_tree(tmp_path)
    loaded = data.load(f"folder:{tmp_path},size=16")
    assert loaded.image_shape == (3, 16, 16) and loaded.classes == ("cat", "dog")
    assert len(loaded.train) + len(loaded.val) + len(loaded.test) == 24
    for split in (loaded.train, loaded.val, loaded.test):  # each class has its grey level
        levels = split.images.float().mean((1, 2, 3))
        torch.testing.assert_close(levels, 100.0 * split.labels, atol=3, rtol=0)
    gray = data.load(f"folder:{tmp_path},size=8,mode=L")
    assert gray.image_shape == (1, 8, 8)


def test_folder_with_splits_keeps_them(tmp_path):
    write_tree(tmp_path, ("train", "val", "test"))
    loaded = data.load(f"folder:{tmp_path},size=16")
    assert [len(s) for s in (loaded.train, loaded.val, loaded.test)] == [24, 24, 24]


def test_class_called_train(tmp_path):
    write_tree(tmp_path, classes=("train", "plane"))
    loaded = data.load(f"folder:{tmp_path},size=8,others=classes")
    assert loaded.classes == ("plane", "train")


def test_folder_of_unlabeled_images(tmp_path):
    for i in range(40):
        Image.new("L", (9, 12), i).save(tmp_path / f"{i}.png")
    loaded = data.load(f"folder:{tmp_path},size=8,mode=L")
    assert loaded.num_classes == 0 and set(loaded.train.labels.tolist()) == {-1}


def test_folder_resizes_with_antialiasing(tmp_path):
    """A fine checkerboard becomes grey; sampling without a filter would give black and white."""
    board = (np.indices((128, 128)).sum(0) % 2 * 255).astype(np.uint8)
    Image.fromarray(board).save(tmp_path / "board.png")
    small = pictures.read_image(tmp_path / "board.png", 16, "L")
    assert small.float().std() < 10 and 100 < small.float().mean() < 155


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("folder:/no/such/folder", "no such folder"),
        ("folder", "folder:PATH"),
        ("mnits", "Did you mean 'mnist'"),
        ("rotated:digits,degres=3", "Did you mean 'degrees'"),
        ("rotated:digits,degrees=abc", "not of type float"),
        ("digits:3", "takes no argument"),
        ("rotated:folder:PHOTOS,degrees=3", "cannot be a base"),
        ("affnist-like:translated:digits", "cannot be a base"),
        ("multimnist:digits,copies=0", "leaves no image"),
    ],
)
def test_bad_names_are_explained(tmp_path, name, words):
    if "PHOTOS" in name:
        write_tree(tmp_path)
    with pytest.raises(TorchcapsError, match=words):
        data.load(name.replace("PHOTOS", str(tmp_path)))


def test_check_compares_checksums_of_existing_files(tmp_path):
    from torchcaps.data.registry import check

    assert check("svhn", tmp_path) == []
    files.svhn(tmp_path / "svhn/train_32x32.mat")
    with pytest.raises(TorchcapsError, match="sha256"):
        check("svhn", tmp_path)
    assert check("digits", tmp_path) == []
