"""A paper's runs that results/ does not hold yet, several side by side, resumable.

Jobs go through joblib, so `joblib.parallel_config(backend="dask")` (or ray) around `reproduce`
carries them to a cluster unchanged.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from joblib import Parallel, delayed
from rich.console import Console

from torchcaps.analysis.measure import METRICS, measure, record_measured
from torchcaps.errors import TorchcapsError
from torchcaps.experiments.chain import pretrained
from torchcaps.experiments.registry import get_recipe, has_protocol, recipes
from torchcaps.experiments.tables import get_table, read_results, tables
from torchcaps.train.loop import Interrupted, resume, start
from torchcaps.train.record import append_results
from torchcaps.train.run import Run


@dataclass(frozen=True)
class Job:
    recipe: str
    seed: int
    protocol: str = "ours"
    measures: tuple[str, ...] = ()
    """What the table shows beyond accuracy, taken when the run is done."""

    @property
    def folder(self) -> Path:
        marked = "" if self.protocol == "ours" else f"-{self.protocol}"
        return Path("runs") / f"{self.recipe.replace('/', '-')}{marked}-s{self.seed}"

    @property
    def command(self) -> list[str]:
        marked = [] if self.protocol == "ours" else ["--protocol", self.protocol]
        return ["torchcaps", "train", self.recipe, "--seed", str(self.seed), *marked, "--record"]


@dataclass(frozen=True)
class Done:
    job: Job
    error: str = ""


def missing(
    paper: str, names: tuple[str, ...], seeds: int, results: Path, protocol: str = "ours"
) -> list[Job]:
    """Rows with a recipe and no recorded run; every row gets one before any gets two."""
    chosen = [get_table(paper, name) for name in names] if names else tables(paper)
    measures: dict[tuple[str, str], dict[str, None]] = {}  # of each row that a run can fill
    for table in chosen:
        kinds = {METRICS[c.metric]: None for c in table.columns.values() if c.metric in METRICS}
        for source in (table.name, *table.sources):
            for row in table.rows:
                measures[source, row] = measures.get((source, row), {}) | kinds
    recorded = {(r["recipe"], r["seed"], r["protocol"]) for r in read_results(paper, results)}
    known = {n: get_recipe(n) for n in recipes()}
    rows = {n: r for n, r in known.items() if r.paper == paper and (r.table, r.row) in measures}
    if protocol != "ours":
        rows = {n: get_recipe(n, protocol) for n in rows if has_protocol(n, protocol)}
    if not rows:
        raise TorchcapsError(f"{paper} {' '.join(names)}: no recipe fills it.")
    jobs = [
        Job(n, s, protocol, tuple(measures[r.table, r.row]))
        for s in range(seeds)
        for n, r in rows.items()
    ]
    return [job for job in jobs if (job.recipe, job.seed, protocol) not in recorded]


def run_job(job: Job, data_root: str, results: Path) -> Done:
    """Begin, go on with, or only record a run; what it says goes to a log beside it."""
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    words = sys.argv
    try:
        # The record says the command that gives this one run again.
        sys.argv = job.command
        with job.folder.with_suffix(".log").open("a") as log:
            console = Console(file=log)
            if (job.folder / "recipe.json").exists():
                run = resume(job.folder, console)
            else:
                recipe = get_recipe(job.recipe, job.protocol)
                data = replace(recipe.data, root=data_root or recipe.data.root)
                recipe = pretrained(replace(recipe, seed=job.seed, data=data), console)
                run = start(recipe, job.folder, console)
        append_results(Run(run.folder).record(), results)
        if job.measures:
            sys.argv = ["torchcaps", "measure", str(run.folder), *job.measures, "--record"]
            found = measure(run.folder, list(job.measures), Path(data_root) if data_root else None)
            record_measured(run.folder, found, results)
    except (TorchcapsError, Interrupted, RuntimeError, OSError) as error:
        return Done(job, str(error).strip().split("\n")[0] or type(error).__name__)
    finally:
        sys.argv = words
    return Done(job)


def reproduce(
    jobs: list[Job], at_once: int = 1, data_root: str = "", results: Path = Path("results")
) -> Iterator[Done]:
    """Run them, and say of each when it is done, in the order in which they end."""
    pool = Parallel(n_jobs=at_once, return_as="generator_unordered")
    for done in pool(delayed(run_job)(job, data_root, results) for job in jobs):
        if done is not None:
            yield done
