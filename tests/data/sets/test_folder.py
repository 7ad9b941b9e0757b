"""Image folders: valid ones load with the right splits, others raise a one-line error."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps import data
from torchcaps.data.images import read_image
from torchcaps.errors import TorchcapsError, TorchcapsWarning


def picture(path, level=100, size=(12, 10), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (level,) * 3).save(path, **options)


def classes(root, *folders, count=10):
    """Ten pictures in each folder."""
    for folder in folders:
        for n in range(count):
            picture(root / folder / f"{n}.png", 20 * n)


def table(root, *lines, name="labels.csv", encoding="utf-8"):
    (root / name).write_text("\n".join(lines), encoding=encoding)


def plain(root):
    classes(root, "cat", "dog")


def beside(root, *more):
    classes(root, "train/cat", "train/dog", *more)


def hidden(root):
    beside(root, "val/cat", ".ipynb_checkpoints/x", "train/.cache/x")
    (root / ".DS_Store").write_bytes(b"x")
    (root / "train/cat/._0.png").write_bytes(b"a Mac was here")


def notes(root):
    beside(root)
    (root / "annotations").mkdir()
    (root / "annotations/boxes.xml").write_text("<x/>")


def bad(root, *names, content=b"no picture"):
    plain(root)
    for name in names:
        (root / name).write_bytes(content)


def half_a_jpeg(root):
    plain(root)
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(root / "cat/half.jpg")
    whole = (root / "cat/half.jpg").read_bytes()
    (root / "cat/half.jpg").write_bytes(whole[: len(whole) // 2])


def linked(root):
    classes(root, "elsewhere/.a/b")  # hidden, so that only the link leads there
    (root / "here/cat").mkdir(parents=True)
    classes(root, "here/dog")
    (root / "here/cat").rmdir()
    (root / "here/cat").symlink_to(root / "elsewhere/.a/b")
    (root / "here/dog/loop").symlink_to(root / "here")


def labeled(root, *lines):
    for n in range(20):
        picture(root / "images" / f"{n}.png", 10 * n)
    table(root, *lines)


def lines(suffix=".png", more="", header="file,label", name="images/{n}"):
    rows = (f"{name.format(n=n)}{suffix},{'cat' if n % 2 else 'dog'}{more}" for n in range(20))
    return header, *rows


TWO = ("cat", "dog")
RIGHT = {
    "classes alone": (plain, "", TWO, (16, 2, 2)),
    "train and val": (lambda r: beside(r, "val/cat", "val/dog"), "", TWO, (18, 2, 20)),
    "train and test": (lambda r: beside(r, "test/cat"), "", TWO, (18, 2, 10)),
    "three splits": (lambda r: beside(r, "val/cat", "test/dog"), "", TWO, (20, 10, 10)),
    "capital letters": (
        lambda r: classes(r, "Train/cat", "Train/dog", "VAL/cat"), "", TWO, (18, 2, 10)),
    "training and validation": (
        lambda r: classes(r, "training/cat", "training/dog", "validation/dog", "testing/dog"),
        "", TWO, (20, 10, 10)),
    "train alone": (lambda r: beside(r), "", TWO, (16, 2, 2)),
    "hidden files and folders": (hidden, "", TWO, (18, 2, 10)),
    "a folder without images": (notes, "", TWO, (16, 2, 2)),
    "a folder that is to be ignored": (
        lambda r: beside(r, "extras"), ",others=ignore", TWO, (16, 2, 2)),
    "a class called train": (
        lambda r: classes(r, "train", "plane"), ",others=classes", ("plane", "train"), (16, 2, 2)),
    "a loose picture beside train": (
        lambda r: (beside(r), picture(r / "preview.png")), "", TWO, (16, 2, 2)),
    "folders in classes": (
        lambda r: classes(r, "cat/2020", "cat/2021/may", "dog"), "", TWO, (24, 3, 3)),
    "links": (linked, "/here,follow_links=true", TWO, (16, 2, 2)),
    "links inside": (
        lambda r: (plain(r), (r / "dog/loop").symlink_to(r),
                   (r / "cat/again.png").symlink_to(r / "cat/0.png")),
        "", TWO, (17, 2, 2)),
    "no labels": (lambda r: classes(r, "."), "", (), (8, 1, 1)),
    "an empty class": (lambda r: (plain(r), (r / "emu").mkdir()), "", TWO, (16, 2, 2)),
    "other letters and commas": (
        lambda r: classes(r, "猫, schwarz", "größer 100 %"), "", ("größer 100 %", "猫, schwarz"),
        (16, 2, 2)),
    "capital suffixes": (
        lambda r: [picture(r / f"{c}/{n}.JPG") for c in TWO for n in range(10)], "", TWO,
        (16, 2, 2)),
    "bad files to skip": (
        lambda r: bad(r, "cat/a.png", "dog/b.jpg"), ",skip_broken=true", TWO, (16, 2, 2)),
    "four images of each of 50 classes": (
        lambda r: classes(r, *(f"{n:02}" for n in range(50)), count=4), "",
        tuple(f"{n:02}" for n in range(50)), (162, 18, 20)),
    "three images": (lambda r: [picture(r / f"{n}/0.png") for n in "abc"], "", ("a", "b", "c"),
                     (1, 1, 1)),
    "a table": (lambda r: labeled(r, *lines()), ",labels=labels.csv", TWO, (16, 2, 2)),
    "a table without suffixes, as Excel writes it": (
        lambda r: (labeled(r), table(r, *lines("", header="ID,Class", name="{n}"),
                                      encoding="utf-8-sig")),
        ",labels=labels.csv", TWO, (16, 2, 2)),
    "a table with splits": (
        lambda r: labeled(r, "filename,label,split", *lines(more=",train")[1:13],
                           *lines(more=",test")[13:]),
        ",labels=labels.csv", TWO, (10, 2, 8)),
    "a table of some": (lambda r: labeled(r, *lines()[:11]), ",labels=labels.csv", TWO, (8, 1, 1)),
    "not square": (plain, ",size=8x6", TWO, (16, 2, 2)),
}  # fmt: skip
REFUSED = {
    "nothing there": (lambda r: None, "/no", "no such folder"),
    "a file": (lambda r: picture(r / "a.png"), "/a.png", "no such folder"),
    "no images": (lambda r: table(r, "x"), "", "no images"),
    "a folder beside train": (lambda r: beside(r, "extras"), "", "extras/ beside train/.*others="),
    "a class beside test": (lambda r: classes(r, "test/cat", "dog"), "", "test/ without train/"),
    "test alone": (lambda r: classes(r, "test/cat", "val/dog"), "", "test/, val/ without train/"),
    "two of one split": (lambda r: beside(r, "val/cat", "valid/cat"), "", "two are the same split"),
    "a class that train lacks": (lambda r: beside(r, "val/emu"), "", "'emu'.*not in the train"),
    "no picture": (lambda r: bad(r, "cat/a.png"), "", r"1 of 21 .*skip_broken.*cat/a\.png"),
    "two bad files": (lambda r: bad(r, "cat/a.png", "dog/b.gif"), "", r"2 of 22 .*a\.png.*b\.gif"),
    "many bad files": (
        lambda r: bad(r, *(f"cat/bad{n:02}.png" for n in range(30))), "", "And 20 more"),
    "nothing but bad files": (
        lambda r: [(r / f"{n}.png").write_bytes(b"x") for n in range(3)], ",skip_broken=true",
        "3 of 3 files cannot be read"),
    "a class of bad files": (
        lambda r: ((r / "emu").mkdir(), bad(r, "emu/a.png")), ",skip_broken=true", "image of emu"),
    "empty files": (lambda r: bad(r, "cat/a.png", content=b""), "", "a.png: not an image"),
    "half a JPEG": (half_a_jpeg, "", "half.jpg: not an image.*truncated"),
    "an iPhone's format": (lambda r: bad(r, "cat/a.heic"), "", "a.heic: not an image"),
    "a PostScript file by another name": (
        lambda r: bad(r, "cat/a.png", content=b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"),
        "", "a.png: not an image"),
    "a thread": (lambda r: (plain(r), picture(r / "cat/t.png", size=(900, 1))), "", "too thin"),
    "two images": (lambda r: [picture(r / f"{n}/0.png") for n in "ab"], "", "too few images"),
    "a size in words": (plain, ",size=big", "size=big: give pixels"),
    "a size of nothing": (plain, ",size=0", "size=0: give pixels"),
    "a mode": (plain, ",mode=CMYK", "give L .gray. or RGB"),
    "others": (plain, ",others=what", "give ignore or classes"),
    "a table that is not there": (plain, ",labels=no.csv", "labels=no.csv: not a readable table"),
    "a table of other columns": (
        lambda r: labeled(r, *lines(header="a;b")), ",labels=labels.csv", "no columns file"),
    "a table of other files": (
        lambda r: labeled(r, *lines(), "gone.png,cat"), ",labels=labels.csv",
        "1 of 21 lines .*gone.png"),
    "a table that says it twice": (
        lambda r: labeled(r, *lines(), "3,dog"), ",labels=labels.csv", "an image twice"),
    "a table with half a split": (
        lambda r: labeled(r, "file,label,split", *lines(more=",train")[1:5], *lines()[5:]),
        ",labels=labels.csv", "some have none"),
    "more than memory holds": (plain, ",size=100000", "give a smaller size="),
}  # fmt: skip


@pytest.mark.parametrize("kind", RIGHT)
def test_valid_folders(kind, tmp_path):
    make, options, names, sizes = RIGHT[kind]
    make(tmp_path)
    size = "" if "size=" in options else ",size=8"
    loaded = data.load(f"folder:{tmp_path}{options}{size}")
    assert loaded.classes == names
    assert tuple(len(s) for s in (loaded.train, loaded.val, loaded.test)) == sizes
    assert loaded.image_shape == ((3, 8, 6) if "8x6" in options else (3, 8, 8))
    if names:
        assert all((s.labels >= 0).all() for s in (loaded.train, loaded.val, loaded.test))


@pytest.mark.parametrize("kind", REFUSED)
def test_invalid_folders_raise(kind, tmp_path):
    make, options, sentence = REFUSED[kind]
    make(tmp_path)
    size = "" if "size=" in options else ",size=8"
    with pytest.raises(TorchcapsError) as error:
        data.load(f"folder:{tmp_path}{options}{size}")
    text = str(error.value)
    assert re.search(sentence, text) and "\n" not in text and text.endswith(".")


def test_a_folder_has_the_same_test_images_for_every_seed(tmp_path):
    classes(tmp_path, "cat", "dog", count=12)  # twelve grays
    zero, one = (data.load(f"folder:{tmp_path},size=8,mode=L", seed=seed) for seed in (0, 1))
    assert torch.equal(zero.test.images, one.test.images)
    assert not torch.equal(zero.val.images, one.val.images)


def test_links_that_leave_the_folder_are_not_followed_unless_asked(tmp_path):
    classes(tmp_path, "photos/cat", "photos/dog", "private")
    (tmp_path / "photos/emu").symlink_to(tmp_path / "private")
    (tmp_path / "photos/cat/secret.png").symlink_to(tmp_path / "private/0.png")
    with pytest.warns(TorchcapsWarning, match=r"cat/secret\.png, emu.*follow_links=true"):
        loaded = data.load(f"folder:{tmp_path}/photos,size=8")
    assert loaded.classes == TWO and len(data.dataset.whole(loaded)) == 20
    loaded = data.load(f"folder:{tmp_path}/photos,size=8,follow_links=true")
    assert loaded.classes == (*TWO, "emu") and len(data.dataset.whole(loaded)) == 31


def test_center_crop(tmp_path):
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:, 20:40] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    wide = read_image(tmp_path / "a.png", (20, 30), "L")
    assert wide.shape == (1, 20, 30)
    assert wide[0, :, 13:17].min() > 250 and wide[0, :, :7].max() < 5
    square = read_image(tmp_path / "a.png", 20, "L")
    assert square[0, :, 8:12].min() > 250 and square[0, :, :2].max() < 5


def test_every_image_knows_its_file(tmp_path):
    plain(tmp_path)
    found = data.load(f"folder:{tmp_path},size=10")
    for split in (found.train, found.val, found.test):
        for number, label, pixels in zip(
            split.factors["file"], split.labels, split.images, strict=True
        ):
            name = found.file_of(int(number))
            assert name.split("/")[0] == found.classes[label]
            assert torch.equal(read_image(tmp_path / name, 10, "RGB"), pixels)
    assert found.file_of(-1) == "" and data.load("digits").file_of(0) == ""


@pytest.mark.parametrize("seed", [0, 3])
def test_validation_images_are_not_chosen_by_the_seed_of_the_test_images(seed, tmp_path):
    """Without splits seed 0 holds out the test images, the run's seed + 1 those for validation."""
    classes(tmp_path, "photos", "split/train", "split/test", count=40)
    loaded = data.load(f"folder:{tmp_path}/photos,size=8", seed=seed)
    kept, test = data.hold_out(torch.zeros(40).long(), seed=0)
    val = kept[data.hold_out(torch.zeros(len(kept)).long(), seed=seed + 1)[1]]
    assert loaded.test.factors["file"].tolist() == test.tolist()
    assert loaded.val.factors["file"].tolist() == val.tolist()
    loaded = data.load(f"folder:{tmp_path}/split,size=8", seed=seed)
    val = 40 + data.hold_out(torch.zeros(40).long(), seed=seed)[1]  # the files of test/ come first
    assert loaded.val.factors["file"].tolist() == val.tolist()
