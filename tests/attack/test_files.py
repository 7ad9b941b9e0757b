"""Hostile data files: each is refused in a sentence, fast, and takes no memory to speak of."""

import gzip
import io
import pickle
import struct
import time
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
import scipy.io

from tests.data import files
from torchcaps.data import images as pictures
from torchcaps.data.sets import affnist, cifar, dsprites, mnist, smallnorb, svhn
from torchcaps.errors import TorchcapsError

MEMORY, SECONDS = 50 * 2**20, 10


def refused(read, path, words=".", memory=MEMORY):
    """What a reader says of a file, having taken little memory and time."""
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(TorchcapsError, match=words) as said:
            read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < memory and time.process_time() - began < SECONDS
    assert str(path) in str(said.value) and "\n" not in str(said.value)


def python(path):
    return cifar.read_python(path, b"labels")


def nested(depth=5000):
    """Lists that hold the last one twice: small to write, endless to walk through."""
    shared = b"]q\x00" + b"".join(
        b"]q" + bytes([n % 250 + 1]) + b"(h" + bytes([n % 250]) + b"h" + bytes([n % 250]) + b"e"
        for n in range(depth)
    )
    return b"\x80\x02}(U\x04data" + shared[:0] + b"]q\x00" + shared[3:] + b"U\x06labels]u."


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"


def array(kind, shape, content, state=b""):
    """An array as a file might claim it."""
    dtype = b"cnumpy\ndtype\n(U" + bytes([len(kind)]) + kind + b"I0\nI1\ntR" + state
    return (
        ARRAY
        + b"(I1\n("
        + shape
        + b"t"
        + dtype
        + b"\x89U"
        + bytes([len(content)])
        + content
        + (b"tb")
    )


PICKLES = {
    "lists without end": nested(),
    "an object kind": b"}(U\x04data" + array(b"O8", b"I1\n", b"A" * 8) + b"U\x06labels]u.",
    "flags of its own": b"}(U\x04data"
    + array(b"u1", b"I1\nI3072\n", b"A" * 8, b"(I3\nS'|'\nNNNI-1\nI-1\nI63\ntb")
    + b"U\x06labels]u.",
    "memory of others": b"}(U\x04data" + array(b"u1", b"I999999\nI3072\n", b"") + b"U\x06labels]u.",
    "a negative shape": b"}(U\x04data" + array(b"u1", b"I-1\nI3072\n", b"") + b"U\x06labels]u.",
    "an array that is called": b"cnumpy\nndarray\n(I99999999999999\nttR.",
    "a function of numpy": b"cnumpy\nfromfile\n(S'/etc/passwd'\ntR.",
    "a persistent name": b"Pnowhere\n.",
    "an extension": b"\x82\x01.",
    "an instance": b"(ios\nsystem\n.",
    "a memo that is not there": b"h\x07.",
    "a mark too few": b"t.",
    "a list of huge numbers": b"}(U\x04data]U\x06labels](\x8a\xff" + b"\x7f" * 255 + b"eu.",
    "a list of lists": pickle.dumps({b"data": [[1]], b"labels": [[1]]}, 2),
    "nothing": b"",
    "no end": b"}",
    "a number": b"I1\n.",
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickles(name, tmp_path):
    path = tmp_path / "data_batch_1"
    path.write_bytes(PICKLES[name])
    refused(python, path)


def test_a_million_opcodes_are_read_in_time(tmp_path):
    path = tmp_path / "data_batch_1"
    path.write_bytes(b"](" + b"K\x01" * 3_000_000 + b"e.")
    refused(python, path, "more than 2,000,000 opcodes", 10 * MEMORY)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_what_is_good_is_still_read(protocol, tmp_path):
    pixels, labels = files.cifar_rows(7)
    content = {b"data": pixels, b"labels": labels.tolist(), b"filenames": [b"a.png"] * 7}
    (tmp_path / "batch").write_bytes(pickle.dumps(content, protocol))
    split = python(tmp_path / "batch")
    assert split.labels.tolist() == labels.tolist()
    assert (split.images.reshape(7, -1).numpy() == pixels).all()


@pytest.mark.parametrize("label", [-1, 10, 2**31 - 1])
def test_labels_that_are_no_class(label, tmp_path):
    pixels, labels = files.cifar_rows(20)
    wrong = [label, *labels.tolist()[1:]]
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        path = tmp_path / "cifar-10-batches-py" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickle.dumps({b"data": pixels, b"labels": wrong}, 2))
    with pytest.raises(TorchcapsError, match="not one of 0 to 9"):
        cifar.cifar10(tmp_path, seed=0)


@pytest.mark.parametrize("label", [-1, 5])
def test_categories_that_are_none(label, tmp_path):
    files.smallnorb(tmp_path)
    (path,) = tmp_path.glob("smallnorb/*testing-cat.mat")
    categories = smallnorb.read_norb(path).copy()
    categories[3] = label
    files.norb(path, categories)
    with pytest.raises(TorchcapsError, match="not one of 0 to 4"):
        smallnorb.smallnorb(tmp_path, seed=0)


@pytest.mark.parametrize("label", [-1, 11])
def test_house_numbers_that_are_none(label, tmp_path):
    labels = np.array([[1], [label], [3]], np.int16)
    scipy.io.savemat(tmp_path / "a.mat", {"X": np.zeros((32, 32, 3, 3), np.uint8), "y": labels})
    refused(svhn.read_svhn, tmp_path / "a.mat", "outside 1 to 10")


def bomb(size):
    return zlib.compress(bytes(size), 9)


def test_gzip_bombs(tmp_path):
    """A file that unpacks to a gigabyte behind a header that promises a few bytes."""
    content = struct.pack(">4B3I", 0, 0, 8, 3, 1, 4, 5) + bytes(2**28)
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(content, 9))
    refused(lambda p: mnist.read_idx(p, 3), path, "more than the 36 bytes")
    path.write_bytes(gzip.compress(struct.pack("<Ii3i", 0x1E3D4C55, 3, 1, 1, 1) + bytes(2**28), 9))
    refused(smallnorb.read_norb, path, "more than")


def test_matlab_bombs(tmp_path):
    head = b"MATLAB 5.0".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    packed = zlib.compress(struct.pack("<II", 14, 16) + bytes(2**28), 9)
    path = tmp_path / "batch.mat"
    path.write_bytes(head + struct.pack("<II", 15, len(packed)) + packed)
    refused(affnist.read_affnist, path)
    packed = zlib.compress(struct.pack("<II", 14, 2**32 - 1) + bytes(2**20), 9)
    path.write_bytes(head + struct.pack("<II", 15, len(packed)) + packed)
    refused(affnist.read_affnist, path, "too large")


def test_npz_bombs(tmp_path):
    """An array that nobody asked for is not read; one that is too large is refused."""

    def npy(values):
        buffer = io.BytesIO()
        np.save(buffer, values)
        return buffer.getvalue()

    path = tmp_path / "a.npz"
    images = np.zeros((2, 64, 64), np.uint8)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("imgs.npy", npy(images))
        z.writestr("latents_classes.npy", npy(np.zeros((2, 6), np.int64)))
        z.writestr("unasked.npy", bytes(2**28))
    assert len(dsprites.read_dsprites(path)) == 2
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr("imgs.npy", npy(images))
        z.writestr("latents_classes.npy", bytes(2**27))
    refused(dsprites.read_dsprites, path, "latents_classes has more than")


def png_chunk(name, content):
    sum_of = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", sum_of)


def test_pictures_that_are_none(tmp_path):
    path = tmp_path / "cat.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 50 50\n%%EndComments\n")
    refused(lambda p: pictures.read_image(p, 32, "RGB"), path, "not an image")
    for width, height, said in ((200_000, 1, "too thin"), (9_500, 9_500, "too large")):
        line = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
        chunks = [(b"IHDR", line), (b"IDAT", bomb(200_001)), (b"IEND", b"")]
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*c) for c in chunks))
        refused(lambda p: pictures.read_images([p], (64, 64), "RGB"), path, said)


def test_a_pipe_is_no_file(tmp_path):
    import os

    os.mkfifo(tmp_path / "batch")
    refused(python, tmp_path / "batch", "not a plain file")
