"""Output paths: existing files, runs, unwritable places, folders that a command has begun."""

import json
import os

import pytest

from torchcaps.errors import TorchcapsError
from torchcaps.outputs import (
    MANIFEST,
    check_file,
    check_folder,
    run_around,
    scratch_folder,
    unfinished,
)


@pytest.fixture
def run(tmp_path):
    """The files by which a folder is known as a run."""
    folder = tmp_path / "run"
    (folder / "model").mkdir(parents=True)
    (folder / "recipe.json").write_text("{}")
    return folder


def test_a_new_file_may_be_written_and_an_existing_one_by_force(tmp_path):
    path = tmp_path / "new/file.onnx"
    assert check_file(path) == path and not path.parent.exists()
    path.parent.mkdir()
    path.write_text("mine")
    with pytest.raises(TorchcapsError, match="file.onnx already exists. .* --force"):
        check_file(path)
    assert check_file(path, force=True) == path
    with pytest.raises(TorchcapsError, match="is a folder"):
        check_file(tmp_path, force=True)


def test_a_link_to_nowhere_is_a_file_that_exists(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(TorchcapsError, match="exists"):
        check_file(tmp_path / "link")


def test_a_device_is_no_file_of_the_user():
    assert str(check_file("/dev/null")) == "/dev/null"


@pytest.mark.parametrize("inside", ["recipe.json", "record.json", "model/x.onnx", "page"])
def test_nothing_is_written_into_a_run(run, tmp_path, inside, monkeypatch):
    for check in (check_file, check_folder):
        with pytest.raises(TorchcapsError, match="lies in the run|is not a folder"):
            check(run / inside)
    (tmp_path / "link").symlink_to(run)
    assert run_around(tmp_path / "link" / inside)
    monkeypatch.chdir(run / "model")
    assert run_around(type(run)(inside)) == run
    assert check_file(run / "model/x.onnx", force=True)


def test_a_recipe_alone_is_no_run(tmp_path):
    (tmp_path / "recipe.json").write_text('{"cake": 1}')
    assert run_around(tmp_path / "file") is None


def test_a_place_that_cannot_be_written_is_known_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TorchcapsError, match="file is not a folder"):
        check_file(tmp_path / "file/below/x.npy")
    (tmp_path / "locked").mkdir(mode=0o500)
    if not os.access(tmp_path / "locked", os.W_OK):  # root may write anywhere
        with pytest.raises(TorchcapsError, match="no permission"):
            check_file(tmp_path / "locked/x.npy")


def test_a_folder_is_new_or_empty_or_begun_by_the_same_command(tmp_path):
    folder = tmp_path / "out"
    check_folder(folder)
    with pytest.raises(KeyboardInterrupt), unfinished(folder, "demo"):
        raise KeyboardInterrupt
    assert check_folder(folder, command="demo") == folder
    for command in ("", "pack"):
        with pytest.raises(TorchcapsError, match="not empty"):
            check_folder(folder, command=command)
    with unfinished(folder, "demo"):
        pass
    assert not list(folder.iterdir())
    check_folder(folder)
    (folder / "mine").write_text("")
    with pytest.raises(TorchcapsError, match="not empty"):
        check_folder(folder, command="demo")
    assert check_folder(folder, force=True) == folder


@pytest.mark.parametrize("content", ["", "[", "[1]", '{"command": 3}', '{"command": ""}'])
def test_another_programs_manifest_is_not_continued(tmp_path, content):
    (tmp_path / MANIFEST).write_text(content)
    for command in ("demo", ""):
        with pytest.raises(TorchcapsError, match="not empty"):
            check_folder(tmp_path, command=command)
    (tmp_path / MANIFEST).write_text(json.dumps({"command": "demo"}))
    check_folder(tmp_path, command="demo")


def test_a_scratch_folder_lies_beside_the_output_and_goes_away(tmp_path):
    with scratch_folder(tmp_path / "a/page") as folder:
        (folder / "x").write_text("")
        assert folder.parent == tmp_path / "a"
    assert not list((tmp_path / "a").iterdir())
