"""Broken and hostile files: a clear error each time, never a crash, never code run."""

import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data import files
from torchcaps.data import images as pictures
from torchcaps.data.sets import affnist, cifar, dsprites, mnist, smallnorb, svhn
from torchcaps.errors import TorchcapsError


def good_files(root: Path) -> dict[str, Path]:
    """A good file for each reader."""
    files.idx(root / "idx", files.RNG.integers(0, 256, (3, 4, 5), dtype=np.uint8))
    files.idx(root / "idx.gz", files.RNG.integers(0, 256, (3, 4, 5), dtype=np.uint8), zipped=True)
    pixels, labels = files.cifar_rows(3)
    (root / "binary").write_bytes(np.concatenate([labels[:, None], pixels], 1).tobytes())
    files.cifar_python(root / "python", b"labels", 3)
    files.norb(root / "norb", np.arange(24, dtype=np.int32).reshape(2, 3, 4))
    files.svhn(root / "svhn.mat", 3)
    files.affnist(root / "affnist.mat", 3)
    files.dsprites(root / "dsprites.npz", 3)
    from PIL import Image

    Image.fromarray(pixels[0].reshape(32, 32, 3)).save(root / "image.png")
    return {name: root / name for name in READERS}


READERS = {
    "idx": lambda p: mnist.read_idx(p, 3),
    "idx.gz": lambda p: mnist.read_idx(p, 3),
    "binary": lambda p: cifar.read_binary(p, 1),
    "python": lambda p: cifar.read_python(p, b"labels"),
    "norb": smallnorb.read_norb,
    "svhn.mat": svhn.read_svhn,
    "affnist.mat": affnist.read_affnist,
    "dsprites.npz": dsprites.read_dsprites,
    "image.png": lambda p: pictures.read_image(p, 8, "RGB"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> dict[str, bytes]:
    paths = good_files(tmp_path_factory.mktemp("good"))
    for name, path in paths.items():
        READERS[name](path)
    return {name: path.read_bytes() for name, path in paths.items()}


@pytest.mark.parametrize("name", READERS)
@given(cut=st.floats(0, 0.999))
def test_a_truncated_file_is_an_error(name, cut, good, tmp_path_factory):
    path = tmp_path_factory.mktemp("cut") / name
    path.write_bytes(good[name][: int(cut * len(good[name]))])
    size = path.stat().st_size
    if name == "binary" and size and size % 3073 == 0:
        return  # whole rows: the format cannot tell
    if name == "image.png" and len(good[name]) - size <= 16:
        return  # all pixels are there, only the end mark is not
    with pytest.raises(TorchcapsError, match=path.name):
        READERS[name](path)


@pytest.mark.parametrize("name", READERS)
@given(st.data())
def test_damaged_bytes_give_data_or_a_clear_error(name, good, tmp_path_factory, data):
    """Pixels may change unseen; nothing but a TorchcapsError may come out."""
    content = bytearray(good[name])
    for _ in range(data.draw(st.integers(1, 8))):
        # headers are where the damage bites
        top = min(len(content), data.draw(st.sampled_from([16, 200, len(content)]))) - 1
        content[data.draw(st.integers(0, top))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / name
    path.write_bytes(bytes(content))
    try:
        READERS[name](path)
    except TorchcapsError as error:
        assert str(path) in str(error)


@pytest.mark.parametrize("name", READERS)
@given(st.binary(max_size=300))
def test_noise_is_an_error(name, tmp_path_factory, content):
    path = tmp_path_factory.mktemp("noise") / name
    path.write_bytes(content)
    with pytest.raises(TorchcapsError):
        READERS[name](path)


@pytest.mark.parametrize("name", READERS)
def test_a_missing_file_is_an_error(name, tmp_path):
    with pytest.raises(TorchcapsError):
        READERS[name](tmp_path / "nothing")


class Hostile:
    def __init__(self, target: str):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_runs_nothing(tmp_path, protocol):
    mark = tmp_path / "ran"
    attacks = [
        Hostile(str(mark)),
        {b"data": Hostile(str(mark)), b"labels": [1]},
        {b"labels": np.array([Hostile(str(mark))], dtype=object)},
    ]
    for attack in attacks:
        path = tmp_path / "batch"
        path.write_bytes(pickle.dumps(attack, protocol=protocol))
        with pytest.raises(TorchcapsError, match="refused"):
            cifar.read_python(path, b"labels")
    assert not mark.exists()


@pytest.mark.parametrize(
    "opcodes",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"cbuiltins\ngetattr\n(cnumpy\nndarray\nS'tofile'\ntR.",
        b"cnumpy\nload\n(S'/etc/passwd'\ntR.",
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x02id\x85R.",
        b"cnumpy\nndarray\n(I99999999999999\nttR.",
    ],
)
def test_crafted_pickles_are_refused(tmp_path, opcodes):
    (tmp_path / "batch").write_bytes(opcodes)
    with pytest.raises(TorchcapsError):
        cifar.read_python(tmp_path / "batch", b"labels")


def test_an_npz_with_pickled_objects_runs_nothing(tmp_path):
    mark = tmp_path / "ran"
    array = np.array([Hostile(str(mark))], dtype=object)
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as z:
        for name in ("imgs", "latents_classes", "train_images"):
            z.writestr(f"{name}.npy", buffer.getvalue())
    with pytest.raises(TorchcapsError):
        dsprites.read_dsprites(tmp_path / "a.npz")
    (tmp_path / "smallnorb").mkdir()
    (tmp_path / "a.npz").rename(tmp_path / "smallnorb/smallnorb.npz")
    with pytest.raises(TorchcapsError):
        smallnorb.smallnorb(tmp_path, seed=0)
    assert not mark.exists()
