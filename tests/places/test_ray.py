"""Ray: tasks that come back after a lost node; an address where nothing answers."""

import json
import socket
from pathlib import Path

import pytest

from tests.places import kill_node
from tests.places.test_run import job
from torchcaps.errors import TorchcapsError
from torchcaps.places import get_place, ray, run_jobs
from torchcaps.places.run import check_place


def test_an_address_where_nothing_answers():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(TorchcapsError, match=f"nothing answers at 127.0.0.1:{port}"):
        ray._check_answer(f"127.0.0.1:{port}")
    with pytest.raises(TorchcapsError, match="nothing answers at host"):
        ray._check_answer("host")


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    assert check_place("ray:host:6379,gpus=0.25") == "ray"
    with pytest.raises(TorchcapsError, match=r"torchcaps\[ray\]"):
        get_place("ray:host:6379,gpus=0.25")


@pytest.mark.ray
def test_a_lost_node_and_a_killed_driver(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = kill_node.main("ray", tmp_path)
    assert found["recorded once"] and found["bit-identical"] == kill_node.RUNS, found


@pytest.mark.ray
def test_named_variables_reach_tasks_and_no_log_has_their_values(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    tell = job("write_variables", file="found.json", names=["TOKEN", "OTHER"])
    with kill_node.ray(tmp_path) as (on, _, _):
        monkeypatch.setenv("TOKEN", "a-secret-value")
        monkeypatch.setenv("OTHER", "not-named")
        outcomes = list(run_jobs([tell], f"{on},env=TOKEN"))
        logs = Path("/tmp/ray/session_latest/logs").resolve()
        texts = [path.read_bytes() for path in logs.rglob("*") if path.is_file()]
    assert [outcome.error for outcome in outcomes] == [""]
    found = json.loads((tmp_path / "found.json").read_text())
    assert found == {"TOKEN": "a-secret-value", "OTHER": None}
    assert texts and not any(b"a-secret-value" in text for text in texts)
