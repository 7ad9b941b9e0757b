"""The files of onnxruntime-web: what the wheel holds, and errors where they are missing."""

import importlib.util
import subprocess
import tomllib
from pathlib import Path

import pytest

from torchcaps.errors import TorchcapsError
from torchcaps.explorer.shelf import Shelf
from torchcaps.explorer.web import RUNTIME, VENDOR, export_web

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("vendor", ROOT / "scripts" / "vendor.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_wheel_holds_the_files_that_an_export_needs(script):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "explorer/vendor/*" in project["tool"]["setuptools"]["package-data"]["torchcaps"]
    assert script.FILES == RUNTIME and script.FOLDER == VENDOR
    assert "\ndist: vendor\n" in (ROOT / "Makefile").read_text()


def test_a_package_with_another_checksum_is_refused(script, monkeypatch, tmp_path):
    def pack(words, cwd, **_):
        assert words[:2] == ["npm", "pack"] and "onnxruntime-web@" in words[2]
        (Path(cwd) / "onnxruntime-web.tgz").write_bytes(b"something else")

    monkeypatch.setattr(subprocess, "run", pack)
    with pytest.raises(SystemExit, match="sha512 .*, expected"):
        script.vendor(tmp_path / "vendor")
    assert not (tmp_path / "vendor").exists()


def test_without_npm_the_error_names_it(script, monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: open("/no/such/npm"))
    with pytest.raises(SystemExit, match="needs npm"):
        script.vendor(tmp_path / "vendor")


def test_missing_runtime_files_are_an_error_that_says_what_to_do(tmp_path):
    shelf = Shelf(["convnet-avg-small.digits"], bundled=False)
    (tmp_path / RUNTIME[0]).write_text("")
    with pytest.raises(TorchcapsError, match="lacks ort-wasm.*make vendor.*--runtime"):
        export_web(shelf, tmp_path / "page", runtime=tmp_path)
    assert not (tmp_path / "page").exists()
