"""Lose a node and then the driver in the middle of twelve runs:

    python -m tests.places.kill_node local | slurm | ray

prints as JSON what came of it: every run must be recorded once, with the weights of a run that
nothing disturbed. slurm and ray start a cluster of three nodes on this machine.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.places.slurm_cluster import Cluster
from torchcaps.models.registry import model_config
from torchcaps.places import Job, run_jobs
from torchcaps.training.recipe import DataSpec, Recipe, to_dict
from torchcaps.training.run import Run

RUNS = int(os.environ.get("TORCHCAPS_KILL_RUNS", "12"))
RECIPE = Recipe(
    name="demo/capsnet",
    epochs=5,
    batch_size=50,
    data=DataSpec(name="digits", augment=("translate:2",), per_class=100),
    model=model_config(
        "capsnet", channels=16, num_types=4, pose_dim=4, class_pose_dim=8, hidden=(32,)
    ),
    checkpoint_seconds=0.5,
)


def lines_of_runs() -> list[tuple]:
    """What the result lines are about; a run that is recorded twice has its lines twice."""
    return sorted((x["seed"], x["data"], x["split"], x["metric"]) for x in recorded())


def recorded() -> list[dict]:
    path = Path("results/other.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def drive(on: str, at_once: int) -> None:
    """What `paper run` does: give out the runs that are not recorded."""
    done = {line["seed"] for line in recorded()}
    jobs = [
        Job(
            "torchcaps.papers.reproduce:train_and_record",
            {
                "recipe": to_dict(replace(RECIPE, seed=seed)),
                "folder": f"runs/s{seed}",
                "command": f"torchcaps train demo/capsnet --seed {seed}",
                "metrics": [],
                "results": "results",
                "in_turn": False,
            },
            name=f"seed {seed}",
            log=f"runs/s{seed}.log",
        )
        for seed in range(RUNS)
        if seed not in done
    ]
    for outcome in run_jobs(jobs, on, at_once):
        print(outcome.job.name, outcome.error or "done", flush=True)


@contextmanager
def local(folder: Path) -> Iterator[tuple[str, dict[str, str], Callable[[], None]]]:
    """The node is a worker process: the parent's child that has written to a run's log."""

    def kill() -> None:
        rows = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout
        workers = [row.split()[0] for row in rows.splitlines() if "loky" in row]
        own = [pid for pid in workers if _cwd(pid) == folder]
        busy = [pid for pid in own if any(".lock" in name for name in _open_files(pid))]
        os.kill(int(busy[0]), signal.SIGKILL)

    yield "local", dict(os.environ), kill


def _cwd(pid: str) -> Path | None:
    try:
        return Path(f"/proc/{pid}/cwd").resolve()
    except OSError:
        return None


def _open_files(pid: str) -> list[str]:
    try:
        return [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return []


@contextmanager
def slurm(folder: Path) -> Iterator[tuple[str, dict[str, str], Callable[[], None]]]:
    with tempfile.TemporaryDirectory() as place, Cluster(Path(place)) as cluster:
        yield "slurm:time=1h", cluster.environment, lambda: cluster.kill_node("n2")


@contextmanager
def ray(folder: Path) -> Iterator[tuple[str, dict[str, str], Callable[[], None]]]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster as RayCluster

    cluster = RayCluster(initialize_head=True, head_node_args={"num_cpus": 0})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(3)]
    try:
        kill = lambda: cluster.remove_node(nodes[1], allow_graceful=False)  # noqa: E731
        yield f"ray:{cluster.address}", dict(os.environ), kill
    finally:
        cluster.shutdown()


PLACES = {"local": local, "slurm": slurm, "ray": ray}


def in_progress() -> list[Run]:
    """Runs with an epoch behind them that are not finished."""
    runs = [Run(path) for path in Path("runs").glob("s*") if path.is_dir()]
    return [run for run in runs if run.metrics_file.exists() and not run.finished]


def until(what: Callable[[], object], process: subprocess.Popen, seconds: float = 240) -> None:
    ends = time.monotonic() + seconds
    while not what():
        said = Path("driver.out").read_text
        assert process.poll() is None and time.monotonic() < ends, said()
        time.sleep(0.1)


def main(kind: str, folder: Path) -> dict:
    reference = folder / "reference"
    place = folder / "place"
    for each in (reference, place):
        each.mkdir(parents=True)
    os.chdir(reference)
    drive("local", 1)
    wanted = {line["seed"]: Run(Path(f"runs/s{line['seed']}")).record() for line in recorded()}
    lines = lines_of_runs()
    os.chdir(place)
    with PLACES[kind](place.resolve()) as (on, environment, kill):
        began = time.monotonic()
        environment |= {"PYTHONPATH": os.environ.get("PYTHONPATH", str(Path(__file__).parents[2]))}

        def driver() -> subprocess.Popen:
            at_once = "3" if kind == "local" else "0"
            command = [sys.executable, "-m", "tests.places.kill_node", "drive", on, at_once]
            with Path("driver.out").open("w") as out:  # no pipe: workers outlive a killed driver
                return subprocess.Popen(command, env=environment, stdout=out, stderr=out)

        def tell(what: str) -> None:
            print(f"{time.monotonic() - began:.0f} s: {what}", file=sys.stderr, flush=True)

        first = driver()
        until(lambda: recorded() and in_progress(), first)
        kill()
        count = len(recorded())
        tell(f"killed a node after {len({line['seed'] for line in recorded()})} runs")
        until(lambda: len(recorded()) > count and in_progress(), first)
        first.kill()
        first.wait()
        tell(f"killed the driver after {len({line['seed'] for line in recorded()})} runs")
        second = driver()
        second.wait(timeout=400)
        seconds = time.monotonic() - began
    output = Path("driver.out").read_text()
    assert second.returncode == 0, output
    records = {seed: Run(Path(f"runs/s{seed}")).record() for seed in range(RUNS)}
    same = [r["weights_sha256"] == wanted[s]["weights_sha256"] for s, r in records.items()]
    return {
        "place": kind,
        "runs": len(records),
        "recorded once": lines_of_runs() == lines,
        "bit-identical": sum(same),
        "seconds": round(seconds),
        "second driver": output.strip().splitlines()[-RUNS:],
    }


if __name__ == "__main__":
    if sys.argv[1] == "drive":
        drive(sys.argv[2], int(sys.argv[3]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            print(json.dumps(main(sys.argv[1], Path(temporary)), indent=2))
            os.chdir("/")
