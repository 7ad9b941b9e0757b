"""Hugging Face data sets: read by number from their Arrow files, and packs read by them."""

import pytest
import torch

from tests.data.test_pack import photograph, photographs, same
from torchcaps import data
from torchcaps.data.sets.packed import open_records, pack_source
from torchcaps.data.stream import StoredImages
from torchcaps.errors import TorchcapsError

datasets = pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A data set as `save_to_disk` writes it, with rows that were shuffled."""
    root = tmp_path_factory.mktemp("hf")
    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=["ant", "bee"])
    )
    rows = {"image": [photograph(n, (20, 20)) for n in range(30)], "label": [0, 1] * 15}
    made = datasets.Dataset.from_dict(rows, features=features).shuffle(seed=1)
    parts = {"train": made.select(range(20)), "validation": made.select(range(20, 30))}
    datasets.DatasetDict(parts).save_to_disk(str(root / "saved"))
    return root / "saved"


def test_a_hugging_face_data_set_by_number(saved):
    loaded = data.load(f"hf:{saved},size=20,in_memory=false")
    assert loaded.classes == ("ant", "bee") and isinstance(loaded.train.images, StoredImages)
    source = datasets.load_from_disk(str(saved))["validation"]
    for n in (0, 7):
        expected = torch.tensor(list(source[n]["image"].tobytes())).view(20, 20, 3)
        batch = loaded.test.batch(slice(n, n + 1))
        assert torch.equal((batch.images[0] * 255).permute(1, 2, 0).long(), expected)
        assert int(batch.labels) == source[n]["label"]
    same(loaded, data.load(f"hf:{saved},size=20"))


def test_a_hugging_face_data_set_is_packed(saved, tmp_path):
    pack_source(f"hf:{saved}", tmp_path / "out")
    same(data.load(f"packed:{tmp_path}/out"), data.load(f"hf:{saved},size=20"))


def test_parquet_files_of_a_folder(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    source = datasets.load_from_disk(str(saved))
    (tmp_path / "set").mkdir()
    source["train"].to_parquet(str(tmp_path / "set/train-00000.parquet"))
    records = open_records(f"hf:{tmp_path}/set")
    assert len(records) == 20 and records.splits == {"train": range(20)}


def test_wrong_columns_and_names_are_explained(saved, tmp_path):
    for name, text in {
        f"hf:{saved},image=picture": "no column 'picture'. Its columns: image, label",
        f"hf:{tmp_path}/nothing": "cannot be loaded",
        f"hf:{saved},mode=HSV": "give L",
    }.items():
        with pytest.raises(TorchcapsError, match=text):
            data.load(name)
    plain = datasets.Dataset.from_dict({"text": ["a", "b"]})
    plain.save_to_disk(str(tmp_path / "text"))
    with pytest.raises(TorchcapsError, match="name the image, image=COLUMN"):
        data.load(f"hf:{tmp_path}/text")
    with pytest.raises(TorchcapsError, match="does not hold images"):
        data.load(f"hf:{tmp_path}/text,image=text")


def test_hugging_face_reads_a_pack(tmp_path):
    photographs(tmp_path / "in", count=3)
    pack_source(f"{tmp_path}/in,size=16", tmp_path / "out")
    part = datasets.Dataset.from_file(str(tmp_path / "out/all-00000.arrow"))
    assert part.features["label"].names == ["cat", "dog"]
    assert part[1]["image"].size == (16, 16) and part[1]["label"] == 0
