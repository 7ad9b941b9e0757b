"""16-bit and float images: one scale for a data set, kept with the model that learned from it."""

import numpy as np
import pytest
import torch
from PIL import Image

import torchcaps
from torchcaps import data
from torchcaps.data.images import read_image
from torchcaps.data.value_range import Values, as_range, default_range, to_bytes
from torchcaps.errors import TorchcapsError, UsageError


def save(path, level, kind=np.uint16, suffix=".png"):
    """A picture of one level."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8), level, kind)).save(path.with_suffix(suffix))


def levels(folder, *numbers, kind=np.uint16, suffix=".png", below=""):
    """Two classes with a picture of each level."""
    for name in ("a", "b"):
        for n, level in enumerate(numbers):
            save(folder / below / name / str(n), level, kind, suffix)


def grays(split):
    return sorted(set(split.images[:, 0, 4, 4].tolist()))


@pytest.mark.parametrize(
    "high, top", [(200, 255), (1000, 1023), (3200, 4095), (9000, 16383), (40000, 65535)]
)
def test_integers_have_the_smallest_depth_that_holds_the_training_maximum(tmp_path, high, top):
    levels(tmp_path, *range(0, high, high // 11), high)
    loaded = data.load(f"folder:{tmp_path},size=8,mode=L")
    assert loaded.value_range == (0, top) and f"0..{top}" in loaded.note
    levels_read = grays(data.dataset.whole(loaded))
    assert levels_read[0] == 0 and levels_read[-1] == round(255 * high / top)


def test_files_of_one_scene_keep_their_differences(tmp_path):
    """The same picture times 200 and times 400: the second is twice as bright."""
    for number, factor in enumerate((0.0, 0.25, 0.5, 1.0)):
        levels(tmp_path / "x", 1000 * factor, kind=np.float32, suffix=".tiff", below=str(number))
    with pytest.raises(TorchcapsError, match=r"float images from 0 to 1000.*range=LO\.\.HI"):
        data.load(f"folder:{tmp_path}/x,size=8,mode=L")
    loaded = data.load(f"folder:{tmp_path}/x,size=8,mode=L,range=0..2000")
    assert grays(data.dataset.whole(loaded)) == [0, 32, 64, 128]
    assert loaded.value_range == (0, 2000)


def test_float_files_from_0_to_1_need_no_range(tmp_path):
    levels(tmp_path, *np.linspace(0, 1, 12), kind=np.float32, suffix=".tiff")
    loaded = data.load(f"folder:{tmp_path},size=8,mode=L")
    assert loaded.value_range == (0, 1) and grays(data.dataset.whole(loaded))[-1] == 255


def test_training_files_decide_and_others_are_clipped(tmp_path):
    levels(tmp_path, *range(0, 1000, 90), below="train")
    levels(tmp_path, 500, 4000, below="test")
    loaded = data.load(f"folder:{tmp_path},size=8,mode=L")
    assert loaded.value_range == (0, 1023) and "2 images have values outside" in loaded.note
    assert grays(loaded.test) == [round(255 * 500 / 1023), 255]


def test_images_on_disk_have_the_same_range(tmp_path):
    levels(tmp_path, *range(0, 1000, 90))
    name = f"folder:{tmp_path},size=8,mode=L"
    memory, disk = data.load(name), data.load(f"{name},in_memory=false")
    assert disk.value_range == memory.value_range == (0, 1023)
    assert torch.equal(disk.test.batch(slice(None)).images, memory.test.batch(slice(None)).images)


def test_files_of_8_bits_are_as_they_were(tmp_path):
    levels(tmp_path, *range(0, 240, 20), kind=np.uint8)
    loaded = data.load(f"folder:{tmp_path},size=8,mode=L,range=0..4095")
    assert loaded.value_range is None and "not used" in loaded.note
    assert grays(data.dataset.whole(loaded)) == list(range(0, 240, 20))


def test_colors_of_16_bits_are_mentioned(tmp_path):
    levels(tmp_path, *range(0, 240, 20), kind=np.uint8)
    # an RGB PNG of 16 bits, which Pillow cannot write: 8x8 pixels of (0x12, 0x34) in each channel
    (tmp_path / "a/rgb.png").write_bytes(png_of_16_bits(8, 8, b"\x12\x34" * 3))
    loaded = data.load(f"folder:{tmp_path},size=8")
    assert "1 color images of 16 bits are read by their upper 8" in loaded.note


def png_of_16_bits(width, height, pixel):
    import struct
    import zlib

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    rows = (b"\0" + pixel * width) * height
    head = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize(
    "levels_, kind, said",
    [
        ((-5, 100), np.int32, "integer images from -5 to 100"),
        ((0, 70000), np.int32, "integer images from 0 to 70000"),
        ((0, 255), np.float32, "float images from 0 to 255"),
        ((0, np.nan), np.float32, "not finite"),
    ],
)
def test_images_without_an_obvious_range_ask_for_one(tmp_path, levels_, kind, said):
    levels(tmp_path, *levels_ * 3, kind=kind, suffix=".tiff")
    with pytest.raises(TorchcapsError, match=said):
        data.load(f"folder:{tmp_path},size=8,mode=L")


@pytest.mark.parametrize("text", ["", "5", "9..1", "3..3", "a..b", "0..nan", "0..inf", "1-2"])
def test_a_range_is_two_numbers(text):
    with pytest.raises(UsageError, match=r"like 0\.\.4095"):
        as_range(text)


def test_ranges_of_values():
    assert as_range("-1000..3000.5") == (-1000, 3000.5) and as_range("0...5") == (0, 0.5)
    assert default_range([Values(0, 3, True), Values(7, 1024, True)], "x") == (0, 4095)
    assert to_bytes(np.array([-9, 0, 50, 100, 900]), (0, 100)).tolist() == [0, 0, 128, 255, 255]


def test_a_single_image_has_its_full_range(tmp_path):
    save(tmp_path / "a", 32768)
    assert read_image(tmp_path / "a.png", 8, "L").unique().tolist() == [128]
    save(tmp_path / "f", 0.5, np.float32, ".tiff")
    assert read_image(tmp_path / "f.tiff", 8, "L").unique().tolist() == [128]
    save(tmp_path / "g", 99, np.float32, ".tiff")
    with pytest.raises(TorchcapsError, match=r"g\.tiff: float images from 99 to 99"):
        read_image(tmp_path / "g.tiff", 8, "L")
    assert read_image(tmp_path / "g.tiff", 8, "L", value_range=(0, 198)).unique().tolist() == [128]


def test_generated_sets_pass_the_range_on(tmp_path):
    levels(tmp_path, *range(0, 1000, 90))
    loaded = data.load(f"rotated:folder:{tmp_path},degrees=10,size=8,mode=L,range=0..2000")
    assert loaded.value_range == (0, 2000)


def test_a_range_is_for_data_in_memory():
    with pytest.raises(UsageError, match=r"a folder: ,range=LO\.\.HI"):
        torchcaps.fit("capsnet-small", data="digits", value_range=(0, 9))
    with pytest.raises(UsageError, match="range="):
        torchcaps.fit("capsnet-small", data=(np.zeros((9, 8, 8)), [0] * 9), value_range=(9, 0))


def test_arrays_have_one_scale_too():
    images = np.arange(40, dtype=np.uint16)[:, None, None] * np.full((8, 8), 100, np.uint16)
    labels = [0, 1] * 20
    loaded = data.as_dataset((images, labels))
    assert loaded.value_range == (0, 4095) and "0..4095" in loaded.note
    assert grays(data.dataset.whole(loaded))[-1] == round(255 * 3900 / 4095)
    pairs = [(Image.fromarray(image), label) for image, label in zip(images, labels, strict=True)]
    again = data.as_dataset(pairs)
    assert torch.equal(again.train.images, loaded.train.images) and again.value_range == (0, 4095)
    both = data.as_dataset((images[:30], labels[:30]), test=(images[30:] * 2, labels[30:]))
    assert both.value_range == (0, 4095) and "clipped" in both.note and grays(both.test)[-1] == 255
    floats = (images.astype(np.float32) - 500, labels)
    with pytest.raises(TorchcapsError, match="float images from -500 to 3400"):
        data.as_dataset(floats)
    given = data.as_dataset(floats, value_range=(-500, 3500))
    assert grays(data.dataset.whole(given))[0] == 0 and given.value_range == (-500, 3500)
    plain = data.as_dataset((images.astype(np.float32) / 3900, labels))
    assert plain.value_range is None and grays(data.dataset.whole(plain))[-1] == 255
