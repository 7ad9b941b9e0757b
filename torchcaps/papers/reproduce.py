"""Run what results/ lacks of a paper's tables, several runs side by side, resumable."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Any

from torchcaps import places
from torchcaps.errors import TorchcapsError, UsageError, nearest
from torchcaps.escape import Console
from torchcaps.metrics.base import metric_of, read_metric
from torchcaps.papers.pretraining import pretrained, same_run
from torchcaps.papers.records import append_record, read, results_file
from torchcaps.papers.tables import RESULTS, Table, counted_lines, get_table, list_tables
from torchcaps.training.recipe import Recipe, from_dict, to_dict, with_root
from torchcaps.training.registry import get_recipe, has_protocol, recipes
from torchcaps.training.run import Run, claimed, first_process, run_folder

HOW = ("fit", "features", "how")
"""Fields of a line that describe a metric beside its data: what a probe was fitted on and read."""
Key = tuple[str, ...]


def eval_command(folder: Path, metrics: tuple[str, ...]) -> str:
    return shlex.join(["torchcaps", "eval", str(folder), "--metrics", *metrics, "--record"])


@dataclass(frozen=True)
class Job:
    recipe: str
    seed: int
    protocol: str = "ours"
    metrics: tuple[str, ...] = ()
    """Metrics of the table beyond the recipe's own, computed after the run."""
    recorded: bool = field(default=False, compare=False)
    """The run is recorded, its folder exists, and only these metrics are missing."""

    @property
    def folder(self) -> Path:
        return run_folder(self.recipe, self.protocol, self.seed)

    @property
    def command(self) -> str:
        """The command for this one run."""
        marked = [] if self.protocol == "ours" else ["--protocol", self.protocol]
        words = ["torchcaps", "train", self.recipe, "--seed", str(self.seed), *marked, "--record"]
        return shlex.join(words)

    @property
    def eval_command(self) -> str:
        """The command that then computes the table's other metrics, or an empty string."""
        return eval_command(self.folder, self.metrics) if self.metrics else ""

    @property
    def exists(self) -> bool:
        """The finished run is here, so that more metrics can be computed."""
        return Run(self.folder).finished


@dataclass(frozen=True)
class Done:
    job: Job
    error: str = ""


def missing(
    paper: str,
    names: tuple[str, ...],
    seeds: int,
    results: Path,
    protocol: str = "ours",
    only: tuple[str, ...] = (),
) -> list[Job]:
    """Rows with a recipe and fewer recorded runs than `seeds`, of any seed; every row gets its
    first run before any gets a second.

    A row whose run is recorded and lacks a metric is included, too, if its folder exists; a run
    without a folder that fills no cell of these tables does not count.

    only: names of recipes, with * for any letters
    """
    chosen = [get_table(paper, name) for name in names] if names else list_tables(paper)
    known = {n: get_recipe(n) for n in recipes(paper)}
    wanted = {
        n: kinds for n, r in known.items() if (kinds := _table_metrics(r, chosen)) is not None
    }
    wanted = {n: kinds for n, kinds in wanted.items() if has_protocol(n, protocol)}
    if not wanted:
        raise TorchcapsError(f"{paper} {' '.join(names)}: no recipe fills this table.")
    for text in only:
        if not any(fnmatchcase(n, text) for n in wanted):
            hint = nearest(text, list(wanted), most=0)
            raise UsageError(f"--only: unknown recipe {text!r} in these tables. {hint}".strip())
    if only:
        wanted = {n: k for n, k in wanted.items() if any(fnmatchcase(n, t) for t in only)}
    lines = counted_lines(paper, results)
    shown = {(c.metric, data) for t in chosen for c in t.columns.values() for data in c.data}
    tested: dict[tuple[str, int, str], set[Key]] = {}
    filling = set[tuple[str, int, str]]()
    for r in lines:
        key = (r["data"], *(r.get(name, "") for name in HOW))
        tested.setdefault((r["recipe"], r["seed"], r["protocol"]), set()).add(key)
        if (r["metric"], r["data"]) in shown:
            filling.add((r["recipe"], r["seed"], r["protocol"]))
    measured = {(r["recipe"], r["seed"], r["protocol"], metric_of(r["metric"])) for r in lines}
    jobs = []
    for name, kinds in wanted.items():
        whole = {
            seed
            for recipe, seed, under in tested
            if (recipe, under) == (name, protocol)
            and _keys(known[name]) <= tested[recipe, seed, under]
            and ((recipe, seed, under) in filling or Job(recipe, seed, under).exists)
        }
        for seed in sorted(whole):
            lacking = tuple(k for k in kinds if (name, seed, protocol, k) not in measured)
            job = Job(name, seed, protocol, lacking, recorded=True)
            if lacking and job.exists:
                jobs.append((0, job))
        others = (seed for seed in count() if seed not in whole)
        for number in range(len(whole), seeds):
            jobs.append((number, Job(name, next(others), protocol, tuple(kinds))))
    return [job for _, job in sorted(jobs, key=lambda ranked: ranked[0])]


@dataclass(frozen=True)
class Estimate:
    seconds: float
    as_today: bool
    """The run was one of today's recipe under the same protocol."""


def seconds_before(paper: str, results: Path, protocol: str = "ours") -> dict[str, Estimate]:
    """The seconds of each recipe: those of its fastest recorded run, since others shared their
    device. Runs of another version of the recipe count if there are no others.
    """
    estimates: dict[str, Estimate] = {}
    today = [x for x in counted_lines(paper, results) if x["protocol"] == protocol]
    for lines, as_today in ((today, True), (read(results_file(paper, results))[0], False)):
        seconds: dict[str, float] = {}
        for line in lines:
            if line.get("seconds") and line["recipe"] not in estimates:
                least = seconds.get(line["recipe"], line["seconds"])
                seconds[line["recipe"]] = min(least, line["seconds"])
        estimates |= {recipe: Estimate(s, as_today) for recipe, s in seconds.items()}
    return estimates


def shown_beyond(recipe: Recipe) -> tuple[str, ...]:
    """Metrics that tables show of a recipe's runs beyond the recipe's own."""
    known = recipe.paper in {table.paper for table in list_tables()}
    return tuple(_table_metrics(recipe, list_tables(recipe.paper)) or ()) if known else ()


def _keys(recipe: Recipe) -> set[Key]:
    """The data and the description of each metric of a recipe, as its lines have them."""
    pairs = ((data, m.provenance) for m, data in map(read_metric, recipe.metrics) if data)
    return {(data, *(facts.get(name, "") for name in HOW)) for data, facts in pairs}


def tested_on(recipe: Recipe) -> set[str]:
    """The data sets that its metrics name."""
    return {data for text in recipe.metrics if (data := read_metric(text)[1])}


def _table_metrics(recipe: Recipe, chosen: list[Table]) -> dict[str, None] | None:
    """Metrics beyond its own of the tables that a recipe fills; None: it fills none."""
    more = None
    own = {read_metric(text)[0].name for text in recipe.metrics} | {"accuracy"}
    shown = {recipe.data.name, *tested_on(recipe)}
    for table in chosen:
        rows = {*table.rows, *(row for row, _ in table.derived.values())}
        if recipe.paper != table.paper or recipe.row not in rows:
            continue
        filled = [c for c in table.columns.values() if shown & set(c.data)]
        if recipe.table in (table.name, *table.sources) and filled:
            kinds = {metric_of(c.metric): None for c in filled}
            more = (more or {}) | {k: None for k in kinds if k and k not in own}
    return more


def train_and_record(
    *,
    recipe: dict[str, Any],
    folder: str,
    command: str,
    metrics: list[str],
    results: str,
    in_turn: bool,
    console: Console,
    artifacts: str = "",
) -> None:
    """The job of a place: start, resume or only record a run, and compute further metrics.

    in_turn: others run at the same time; on a GPU one run trains at a time. artifacts: as in
    `HardwareSpec`
    """
    import torch

    from torchcaps.training.evaluate import evaluate_metrics
    from torchcaps.training.loop import resume, start  # Lightning takes a second to import

    wanted, place, lines = from_dict(recipe), Path(folder), Path(results)
    if gpu := torch.cuda.is_available():
        torch.compiler.reset()  # it gives up after eight compilations of one function
    in_turn = in_turn and gpu and wanted.hardware.processes == 1
    in_turn = in_turn or wanted.hardware.in_turn
    machine = {"in_turn": in_turn, "artifacts": artifacts or wanted.hardware.artifacts}
    wanted = replace(wanted, hardware=replace(wanted.hardware, **machine))
    with claimed(place, wanted, console.print):
        if (place / "recipe.json").exists():
            if not same_run(place, wanted):
                raise TorchcapsError(f"{place} holds a run of another recipe; move it away.")
            run = resume(place, console, command, in_turn=in_turn)
        else:
            run = start(pretrained(wanted, console, lines), place, console, command)
    if wanted.hardware.processes > 1 and not first_process():
        return
    append_record(run.record(), lines)
    if metrics:
        root = Path(wanted.data.root) if wanted.data.root else None
        command = eval_command(place, tuple(metrics))
        for record in evaluate_metrics(run.folder, tuple(metrics), root, command):
            append_record(record, lines)


def _at_a_place(
    job: Job, data_root: str, results: Path, in_turn: bool, artifacts: str
) -> places.Job:
    recipe = replace(get_recipe(job.recipe, job.protocol), seed=job.seed)
    arguments = {
        "recipe": to_dict(with_root(recipe, data_root)),
        "folder": str(job.folder),
        "command": job.command,
        "metrics": list(job.metrics),
        "results": str(results),
        "in_turn": in_turn,
        "artifacts": artifacts,
    }
    return places.Job(
        "torchcaps.papers.reproduce:train_and_record",
        arguments,
        name=f"{job.recipe} seed {job.seed}",
        log=str(job.folder.with_suffix(".log")),
        nodes=recipe.hardware.num_nodes,
        processes=recipe.hardware.processes,
    )


def reproduce(
    jobs: list[Job],
    at_once: int = 0,
    data_root: str = "",
    results: Path = RESULTS,
    on: str = "local",
    artifacts: str = "",
) -> Iterator[Done]:
    """Run jobs at a place, `at_once` side by side; yields each when it is done.

    artifacts: folder of compiled artifacts that the runs share
    """
    place = places.get_place(on, at_once)
    wanted = [_at_a_place(job, data_root, results, place.shares_device, artifacts) for job in jobs]
    by_log = dict(zip((job.log for job in wanted), jobs, strict=True))
    for outcome in places.run_jobs(wanted, place):
        yield Done(by_log[outcome.job.log], outcome.error)
