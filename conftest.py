"""Doctests of the public modules: `torch` and `torchcaps` are imported, files go to a folder."""

import pytest


@pytest.fixture(autouse=True)
def doctest_surroundings(request):
    """Examples run in a folder of their own, with the names that a reader has imported."""
    if not isinstance(request.node, pytest.DoctestItem):
        return
    import torch

    import torchcaps

    request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))
    request.getfixturevalue("doctest_namespace").update(torch=torch, torchcaps=torchcaps)
    torch.manual_seed(0)
    torch.set_num_threads(1)
