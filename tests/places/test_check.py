"""The check of a place: locks that lie are found, and different machines compared."""

import fcntl
import multiprocessing

import pytest

from torchcaps.cli import main
from torchcaps.places import check
from torchcaps.places.job import work
from torchcaps.places.run import Ended


def _work(text, lying):
    if lying:
        fcntl.flock = lambda *_: None  # as on a file system that locks one machine only
    work(text)


class Forked:
    """Jobs side by side in children of this process."""

    at_once, remote, shares_device, poll = 2, False, False, 0.05

    def __init__(self, lying):
        self.lying, self.running = lying, {}

    def submit(self, jobs):
        fork = multiprocessing.get_context("fork")
        for text in jobs:
            self.running[text] = fork.Process(target=_work, args=(text, self.lying))
            self.running[text].start()

    def wait(self, seconds):
        return [
            Ended(text)
            for text, process in list(self.running.items())
            if process.join(seconds) or (process.exitcode is not None and self.running.pop(text))
        ]

    def close(self, interrupted):
        return ""


@pytest.mark.parametrize("lying, code", [(False, 0), (True, 1)])
def test_locks_that_lie_are_refused(lying, code, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(check, "get_place", lambda on, at_once: Forked(lying))
    monkeypatch.setattr(check, "LINES", 10)
    assert main(["places", "check", str(tmp_path)]) == code
    said = capsys.readouterr()
    assert ("held one lock" in said.out) == lying and ("not a safe place" in said.err) == lying
    assert "both jobs ran on one" in said.out and not list(tmp_path.iterdir())


def facts(**changed):
    return {"host": "a", "overlaps": 0, "skew": 0.0, "code": "1", "device": "CPU", "free_gb": 1.0,
            "data": [], **changed}  # fmt: skip


def test_machines_that_differ_are_named():
    other = facts(host="b", skew=100.0, code="2", data=["mnist"])
    found = list(check.judge([facts(), other], b""))
    notes = [finding.text for finding in found if not finding.good and not finding.fatal]
    assert any("Clocks differ by 100.0 s" in text for text in notes)
    assert any("Code: 1 and 2" in text for text in notes)
    assert any("different sets" in text for text in notes)
    assert found[-1].fatal and "appended lines were lost" in found[-1].text


def test_a_job_that_never_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "MEET_SECONDS", 0.1)
    with pytest.raises(Exception, match="did not show up"):
        check.probe(folder=str(tmp_path), number=0, data_root="", console=None)
