"""Packs: what is written is what a folder holds, killed packs continue, damage is named."""

import io
import json
import tarfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from torchcaps import data
from torchcaps.data import pack as packs
from torchcaps.data.sets.packed import open_records, pack_source
from torchcaps.errors import TorchcapsError


def photograph(seed, size=(40, 30), mode="RGB"):
    """A smooth random image: JPEG keeps it nearly."""
    noise = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC).convert(mode)


def photographs(root, splits=("",), count=12):
    """Two classes of JPEGs of several sizes, with what cameras and scanners do to files."""
    for split in splits:
        for n in range(2 * count):
            path = root / split / ("cat", "dog")[n % 2] / f"{n:02}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            image, options = photograph(n, (40 + n, 30)), {}
            if n == 3:
                exif = Image.Exif()
                exif[0x0112] = 6  # taken with the camera on its side
                options = {"exif": exif}
            image = image.convert({5: "L", 7: "CMYK"}.get(n, "RGB"))
            image.save(path, "PNG" if n == 9 else "JPEG", **options)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return photographs(tmp_path_factory.mktemp("photographs"))


def same(one, two):
    for split in ("train", "val", "test"):
        a, b = getattr(one, split), getattr(two, split)
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.batch(slice(0, 99)).images, b.batch(slice(0, 99)).images), split


@pytest.mark.parametrize("decoder", ["simplejpeg", "Pillow"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_a_pack_gives_the_very_pixels_of_the_folder(mode, decoder, folder, tmp_path, monkeypatch):
    if decoder == "Pillow":
        monkeypatch.setattr("torchcaps.data.stream.jpeg_decoder", lambda: None)
    pack_source(str(folder), tmp_path / "kept")
    pack_source(f"folder:{folder},size=16,mode={mode},coding=raw", tmp_path / "raw")
    expected = data.load(f"folder:{folder},size=16,mode={mode}")
    for name in (f"packed:{tmp_path}/kept,size=16,mode={mode}", f"packed:{tmp_path}/raw"):
        for place in ("true", "false"):
            same(data.load(f"{name},in_memory={place}"), expected)
    same(data.load(f"folder:{folder},size=16,mode={mode},in_memory=false"), expected)


def test_a_resized_pack_decodes_to_the_same_pixels_with_both_decoders(
    folder, tmp_path, monkeypatch
):
    manifest = pack_source(f"{folder},size=20x24,quality=80", tmp_path / "jpeg")
    assert (manifest["size"], manifest["coding"], manifest["mode"]) == ([20, 24], "jpeg", "RGB")
    one = data.load(f"packed:{tmp_path}/jpeg,in_memory=false")
    assert one.image_shape == (3, 20, 24)
    fast = one.train.batch(slice(0, 9)).images
    monkeypatch.setattr("torchcaps.data.stream.jpeg_decoder", lambda: None)
    slow = data.load(f"packed:{tmp_path}/jpeg").train.batch(slice(0, 9)).images
    assert torch.equal(fast, slow)
    near = data.load(f"folder:{folder},size=20x24").train.batch(slice(0, 9)).images
    assert 0 < (fast - near).abs().mean() < 0.05


def test_images_of_one_size_need_no_size(tmp_path):
    for n in range(10):
        (tmp_path / "in/a").mkdir(parents=True, exist_ok=True)
        photograph(n).save(tmp_path / f"in/a/{n}.jpg")
    manifest = pack_source(str(tmp_path / "in"), tmp_path / "out")
    assert (manifest["size"], manifest["coding"], manifest["mode"]) == ([30, 40], "jpeg", "RGB")
    loaded = data.load(f"packed:{tmp_path}/out,in_memory=false")
    file = np.asarray(Image.open(tmp_path / "in/a/0.jpg"))
    records = open_records(f"packed:{tmp_path}/out")
    assert records.title(0) == "a/0.jpg"
    assert bytes(records.read(0)) == (tmp_path / "in/a/0.jpg").read_bytes()
    pixels = loaded.train.images.store.pixels(np.array([0]))[0].permute(1, 2, 0).numpy()
    assert np.array_equal(pixels, file)


def test_splits_and_missing_labels_are_kept(tmp_path):
    photographs(tmp_path / "in", ("train", "val", "test"), count=3)
    pack_source(str(tmp_path / "in"), tmp_path / "out")
    same(data.load(f"packed:{tmp_path}/out,size=8"), data.load(f"folder:{tmp_path}/in,size=8"))
    (tmp_path / "plain").mkdir()
    for n in range(5):
        photograph(n).save(tmp_path / f"plain/{n}.png")
    pack_source(str(tmp_path / "plain"), tmp_path / "unlabelled")
    loaded = data.load(f"packed:{tmp_path}/unlabelled")
    assert loaded.num_classes == 0 and set(loaded.train.labels.tolist()) == {-1}


def test_a_killed_pack_continues_with_the_same_bytes(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(packs, "SHARD_IMAGES", 5)
    pack_source(str(folder), tmp_path / "whole")
    write, written = packs._write_shard, []

    def killed(path, *rest):
        if len(written) == 2:
            (path.parent / "all-00002.tmp").write_bytes(b"half")
            raise KeyboardInterrupt
        written.append(path)
        return write(path, *rest)

    monkeypatch.setattr(packs, "_write_shard", killed)
    with pytest.raises(KeyboardInterrupt):
        pack_source(str(folder), tmp_path / "killed")
    with pytest.raises(TorchcapsError, match="unfinished pack: run the same"):
        data.load(f"packed:{tmp_path}/killed,size=8")
    again = []
    monkeypatch.setattr(
        packs, "_write_shard", lambda path, *rest: again.append(path) or write(path, *rest)
    )
    with pytest.raises(TorchcapsError, match="another size, mode, coding, quality"):
        pack_source(f"{folder},size=8", tmp_path / "killed")
    pack_source(str(folder), tmp_path / "killed")
    assert len(again) == 3
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "killed" / path.name).read_bytes()
    assert len(list((tmp_path / "killed").iterdir())) == len(list((tmp_path / "whole").iterdir()))
    with pytest.raises(TorchcapsError, match="already holds a pack"):
        pack_source(str(folder), tmp_path / "killed")


def test_images_of_16_bits_have_the_scale_of_the_folder(tmp_path):
    for n in range(12):
        (tmp_path / "in/a").mkdir(parents=True, exist_ok=True)
        level = np.full((8, 8), 300 * n, np.uint16)
        Image.fromarray(level).save(tmp_path / f"in/a/{n:02}.png")
    expected = data.load(f"folder:{tmp_path}/in,size=8,mode=L")
    pack_source(f"{tmp_path}/in,size=8,mode=L,coding=raw", tmp_path / "raw")
    pack_source(f"{tmp_path}/in", tmp_path / "kept")
    for name in (f"packed:{tmp_path}/raw", f"packed:{tmp_path}/kept,mode=L"):
        loaded = data.load(name)
        same(loaded, expected)
        assert loaded.value_range == expected.value_range == (0, 4095) and loaded.unsplit
    pack_source(f"{tmp_path}/in,range=0..9000", tmp_path / "given")
    same(
        data.load(f"packed:{tmp_path}/given,mode=L"),
        data.load(f"folder:{tmp_path}/in,size=8,mode=L,range=0..9000"),
    )


def test_broken_images_are_named_or_left_out(folder, tmp_path):
    photographs(tmp_path / "in", count=4)
    (tmp_path / "in/cat/00.jpg").write_bytes(b"no image")
    whole = (tmp_path / "in/dog/01.jpg").read_bytes()
    (tmp_path / "in/dog/01.jpg").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TorchcapsError, match=r"2 broken images.*cat/00\.jpg.*dog/01\.jpg"):
        pack_source(str(tmp_path / "in"), tmp_path / "out")
    pack_source(f"{tmp_path}/in,skip_broken=true", tmp_path / "out2")
    loaded = data.load(f"packed:{tmp_path}/out2,size=8")
    assert "2 broken images" in loaded.note
    same(loaded, data.load(f"folder:{tmp_path}/in,size=8,skip_broken=true"))


@pytest.fixture(scope="module")
def packed(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("packed") / "out"
    pack_source(f"{folder},size=16", out)
    return out


def damaged(packed, tmp_path, change):
    out = tmp_path / "copy"
    out.mkdir()
    for path in packed.iterdir():
        content = path.read_bytes()
        (out / path.name).write_bytes(change(content) if path.suffix == ".arrow" else content)
    return out


def flipped(content):
    place = content.index(b"\xff\xd8\xff\xe0") + 300  # in the first image
    return content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]


def test_a_damaged_shard_is_named(packed, tmp_path):
    out = damaged(packed, tmp_path, flipped)
    with pytest.raises(TorchcapsError, match=r"all-00000\.arrow is damaged.*checksum.*cat/00"):
        loaded = data.load(f"packed:{out},in_memory=false")  # opens, and fails when it is read
        for split in (loaded.train, loaded.val, loaded.test):
            list(split.batches(5))
    with pytest.raises(TorchcapsError, match=r"all-00000\.arrow is missing or damaged: its sha256"):
        data.registry.check(f"packed:{out}")
    assert data.registry.check(f"packed:{packed}") == [str(packed / "all-00000.arrow")]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c[:-100], "cut off"),
        (lambda c: b"x" * len(c), "is damaged"),
        (lambda c: c[:200] + bytes(300) + c[500:], "is damaged"),
    ],
)
def test_a_shard_that_cannot_be_opened_is_named(change, text, packed, tmp_path):
    out = damaged(packed, tmp_path, change)
    with pytest.raises(TorchcapsError, match=rf"all-00000\.arrow.*{text}") as error:
        data.load(f"packed:{out}")
    assert "\n" not in str(error.value)


def test_a_wrong_manifest_is_an_error(packed, tmp_path):
    out = damaged(packed, tmp_path, lambda c: c)
    manifest = json.loads((out / "torchcaps.json").read_text())
    (out / "torchcaps.json").write_text(json.dumps({**manifest, "classes": ["a", "b"]}))
    with pytest.raises(TorchcapsError, match="its sum has changed"):
        data.load(f"packed:{out}")
    (out / "torchcaps.json").write_text(json.dumps({**manifest, "version": 2}))
    with pytest.raises(TorchcapsError, match="a pack of version 2"):
        data.load(f"packed:{out}")
    (out / "torchcaps.json").unlink()
    with pytest.raises(TorchcapsError, match="no pack.*torchcaps data pack SOURCE"):
        data.load(f"packed:{out}")
    (packed / "all-00000.arrow").rename(out / "gone")
    try:
        with pytest.raises(TorchcapsError, match="all-00000.arrow is missing"):
            data.load(f"packed:{packed}")
    finally:
        (out / "gone").rename(packed / "all-00000.arrow")


def test_wrong_options_are_explained(packed, folder, tmp_path):
    pack_source(f"{folder},size=8,coding=raw", tmp_path / "raw")
    pack_source(str(folder), tmp_path / "kept")
    for name, text in {
        f"packed:{tmp_path}/raw,size=16": "raw pixels of 8x8",
        f"packed:{tmp_path}/kept": "several sizes",
        f"packed:{packed},in_memory=maybe": "auto, true or false",
        f"packed:{packed},mode=HSV": "give L",
        f"packed:{tmp_path}": "no pack",
    }.items():
        with pytest.raises(TorchcapsError, match=text):
            data.load(name)
    for source, text in {
        f"{folder},coding=raw": "needs one size",
        f"{folder},coding=webp": "give jpeg or raw",
        f"{folder},size=8,quality=0": "give 1 to 100",
        "nowhere": "no such folder",
    }.items():
        with pytest.raises(TorchcapsError, match=text):
            pack_source(source, tmp_path / "new")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").touch()
    with pytest.raises(TorchcapsError, match="not empty"):
        pack_source(str(folder), tmp_path / "full")


def tar(path, members):
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def test_webdataset_archives_are_packed(tmp_path):
    def encoded(n):
        file = io.BytesIO()
        photograph(n, (20, 20)).save(file, "JPEG")
        return file.getvalue()

    for split, first in (("train", 0), ("val", 6)):
        members = []
        for n in range(first, first + 6):
            members += [(f"{n:04}.cls", str(n % 3).encode()), (f"{n:04}.jpg", encoded(n))]
        tar(tmp_path / f"{split}-000.tar", members)
    (tmp_path / "classes.txt").write_text("ant\nbee\ncat\n")
    pack_source(f"webdataset:{tmp_path}", tmp_path / "out")
    loaded = data.load(f"packed:{tmp_path}/out")
    assert loaded.classes == ("ant", "bee", "cat")
    assert [len(s) for s in (loaded.train, loaded.val, loaded.test)] == [5, 1, 6]
    assert loaded.test.labels.tolist() == [0, 1, 2, 0, 1, 2]
    pixels = np.asarray(Image.open(io.BytesIO(encoded(7))))
    assert np.array_equal((loaded.test.batch(slice(1, 2)).images[0] * 255).byte().numpy(),
                          pixels.transpose(2, 0, 1))  # fmt: skip
    (tmp_path / "train-000.tar").write_bytes(b"no archive" * 100)
    with pytest.raises(TorchcapsError, match=r"train-000\.tar: not a readable tar archive"):
        pack_source(str(tmp_path), tmp_path / "out2")


@given(place=st.floats(0, 0.9999), cut=st.booleans(), bits=st.integers(1, 255))
def test_no_damage_of_a_shard_gives_other_pixels(place, cut, bits, packed, tmp_path_factory):
    whole = data.load(f"packed:{packed}").train.batch(slice(0, 99))

    def change(content):
        n = int(place * len(content))
        return content[:n] if cut else content[:n] + bytes([content[n] ^ bits]) + content[n + 1 :]

    out = damaged(packed, tmp_path_factory.mktemp("fuzzed"), change)
    try:
        loaded = data.load(f"packed:{out},in_memory=true").train.batch(slice(0, 99))
    except TorchcapsError as error:
        assert "all-00000.arrow" in str(error) and "\n" not in str(error)
    else:  # a byte of padding or of a name
        assert torch.equal(loaded.images, whole.images)
        assert torch.equal(loaded.labels, whole.labels)
