"""Jobs are given out, collected, and given out again when they are lost."""

import json
import os

import pytest

from tests.places import functions
from torchcaps.errors import Interrupted, UsageError
from torchcaps.places import Job, get_place, run_jobs
from torchcaps.places.job import code_version, work
from torchcaps.places.run import LOSSES, Ended, check_place, with_env

APPEND = "tests.places.functions:append"


def job(function, name="", **arguments):
    return Job(f"tests.places.functions:{function}", arguments, name=name or function)


class Scripted:
    """A place whose jobs end as a list says: an error, or None where they are lost."""

    at_once, remote, shares_device, poll = 2, False, False, 0.0

    def __init__(self, ends):
        self.ends, self.given, self.queue, self.closed = list(ends), [], [], None

    def submit(self, jobs):
        assert len(self.queue) + len(jobs) <= self.at_once
        self.given += jobs
        self.queue += jobs

    def wait(self, seconds):
        if not self.queue:
            return []
        end = self.ends.pop(0)
        return [Ended(self.queue.pop(0), end or "", lost=end is None)]

    def close(self, interrupted):
        self.closed = interrupted
        return ""


def test_a_job_runs_in_its_root_and_writes_its_log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = Job(APPEND, {"file": "out", "text": "x"}, log="logs/x.log").to_json()
    monkeypatch.chdir("/")
    assert work(text) == "" and os.getcwd() == str(tmp_path)
    assert (tmp_path / "out").read_text() == "x\n"
    assert (tmp_path / "logs/x.log").read_text() == "appending x\n"


def test_an_error_ends_its_job_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jobs = [job("fail", message="wrong"), job("append", file="out", text="x")]
    jobs.append(Job("tests.places.functions:missing"))
    errors = [outcome.error for outcome in run_jobs(jobs)]
    assert errors[:2] == ["wrong", ""] and "missing" in errors[2]


def test_code_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = Job(APPEND, {"file": "out", "text": "x"}).to_json("0.0.1 abc")
    error = work(text)
    assert "0.0.1 abc" in error and code_version() in error and "same code" in error
    assert not (tmp_path / "out").exists()
    assert work(Job(APPEND, {"file": "out", "text": "x"}).to_json(code_version())) == ""


def test_lost_jobs_are_given_out_again_and_not_forever():
    place = Scripted([None, "", ""])
    outcomes = list(run_jobs([job("append", name=n) for n in "ab"], place))
    assert [outcome.error for outcome in outcomes] == ["", ""] and len(place.given) == 3
    place = Scripted([None] * LOSSES)
    (outcome,) = run_jobs([job("append")], place)
    assert "lost 3 times" in outcome.error and len(place.given) == LOSSES


def test_an_interruption_is_told_to_the_place():
    place = Scripted(["", ""])
    outcomes = run_jobs([job("append", name=n) for n in "abc"], place)
    next(outcomes)
    outcomes.close()
    assert place.closed is True
    place = Scripted([""])
    assert list(run_jobs([job("append")], place)) and place.closed is False


def test_in_this_process_an_interruption_stops_all(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Interrupted):
        list(run_jobs([job("interrupted_once", file="out")]))
    assert (tmp_path / "out").read_text() == "interrupted\n"


def test_a_job_is_json_that_names_its_function():
    text = job("append", file="f", text="t").to_json()
    assert json.loads(text)["function"] == APPEND and json.loads(text)["root"] == os.getcwd()
    assert callable(functions.append)


@pytest.mark.parametrize("on, said", [
    ("slrum", "Did you mean 'slurm'"), ("local:3", "takes no argument"),
    ("ray:host:1,gpu=2", "Did you mean 'gpus'"), ("ray:host:1,gpus=x", "not of type float"),
])  # fmt: skip
def test_a_place_that_is_misspelt(on, said):
    with pytest.raises(UsageError, match=said):
        check_place(on)
        get_place(on)


def test_environment_variables_are_named_and_never_given(monkeypatch):
    monkeypatch.setenv("TOKEN", "secret")
    monkeypatch.delenv("OTHER", raising=False)
    on = with_env("local", ("TOKEN",))
    assert on == "local,env=TOKEN" and get_place(on).at_once == 1
    assert with_env("ray:host:1", ()) == "ray:host:1"
    with pytest.raises(UsageError, match="--env OTHER: no such environment variable"):
        get_place(with_env("local", ("TOKEN", "OTHER")))
    with pytest.raises(UsageError, match="names of environment variables, no values"):
        with_env("local", ("TOKEN=secret",))
