"""Doctests of the public modules: `torch` and `torchcaps` are imported, files go to a folder."""

import _thread
import signal
import threading
import urllib.request

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a background job
    signal.signal(signal.SIGINT, signal.default_int_handler)


def read_and_stop(url):
    """A browser that reads a page of the explorer and then presses Ctrl-C."""

    def visit():
        try:
            assert b"<html" in urllib.request.urlopen(url, timeout=60).read()
        finally:
            _thread.interrupt_main()

    threading.Thread(target=visit, daemon=True).start()


@pytest.fixture(autouse=True)
def doctest_surroundings(request):
    """Examples run in a folder of their own, with the names that a reader has imported."""
    if not isinstance(request.node, pytest.DoctestItem):
        return
    import torch

    import torchcaps

    monkeypatch = request.getfixturevalue("monkeypatch")
    monkeypatch.chdir(request.getfixturevalue("tmp_path"))
    monkeypatch.setattr("webbrowser.open", read_and_stop)
    request.getfixturevalue("doctest_namespace").update(torch=torch, torchcaps=torchcaps)
    torch.manual_seed(0)
    torch.set_num_threads(1)
