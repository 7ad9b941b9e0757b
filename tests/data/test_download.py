"""Fetching from mirrors on this machine: resumed, checked, unpacked; or an error that helps."""

import hashlib
import io
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from torchcaps.data.source import Remote, fetch
from torchcaps.errors import TorchcapsError

CONTENT = bytes(range(256)) * 2000


class Handler(BaseHTTPRequestHandler):
    """Serves self.server.files with ranges; breaks off after `break_after` bytes, once."""

    def do_GET(self):
        server = self.server
        body = server.files.get(self.path)
        if body is None:
            return self.send_error(404)
        start = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
        server.starts.append(start)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        stop = server.break_after or len(body)
        server.break_after = 0
        self.wfile.write(body[start:stop])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.starts, server.break_after = {"/file": CONTENT}, [], 0
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def remote(*urls, content=CONTENT, **options) -> Remote:
    return Remote("set/file", hashlib.sha256(content).hexdigest(), urls, **options)


def test_the_second_mirror_serves_when_the_first_fails(server, tmp_path):
    fetch("set", tmp_path, (remote(f"{server.url}/gone", f"{server.url}/file"),))
    assert (tmp_path / "set/file").read_bytes() == CONTENT


def test_broken_download_resumes(server, tmp_path):
    server.break_after = 100_000
    with pytest.raises(TorchcapsError):
        fetch("set", tmp_path, (remote(f"{server.url}/file"),))
    part = tmp_path / "set/file.part"
    assert 0 < part.stat().st_size <= 100_000
    had = part.stat().st_size
    fetch("set", tmp_path, (remote(f"{server.url}/file"),))
    assert (tmp_path / "set/file").read_bytes() == CONTENT
    assert server.starts[-1] == had


def test_wrong_file_raises_with_its_name(server, tmp_path):
    server.files["/file"] = b"something else"
    with pytest.raises(TorchcapsError) as error:
        fetch("set", tmp_path, (remote(f"{server.url}/file"),))
    assert remote().sha256 in str(error.value)
    assert not (tmp_path / "set/file").exists()


def test_without_network_the_error_lists_files(tmp_path):
    with pytest.raises(TorchcapsError) as error:
        fetch("set", tmp_path, (remote("http://127.0.0.1:9/file"),))
    text = str(error.value)
    assert str(tmp_path / "set/file") in text and remote().sha256 in text


def test_archives_are_unpacked_in_one_step(server, tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as t:
        info = tarfile.TarInfo("inner/a.txt")
        info.size = 5
        t.addfile(info, io.BytesIO(b"hello"))
    server.files["/file"] = buffer.getvalue()
    archive = remote(f"{server.url}/file", content=buffer.getvalue(), unpack_to="folder")
    fetch("set", tmp_path, (archive,))
    assert (tmp_path / "folder/a.txt").read_text() == "hello"
    fetch("set", tmp_path, (archive,))
    assert len(server.starts) == 1


def test_an_archive_cannot_write_outside_its_folder(server, tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as t:
        info = tarfile.TarInfo("../../escaped")
        info.size = 1
        t.addfile(info, io.BytesIO(b"x"))
    server.files["/file"] = buffer.getvalue()
    archive = remote(f"{server.url}/file", content=buffer.getvalue(), unpack_to="a/b/folder")
    with pytest.raises(TorchcapsError, match="unpacked"):
        fetch("set", tmp_path / "root", (archive,))
    assert not list(tmp_path.rglob("escaped"))
