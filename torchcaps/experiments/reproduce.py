"""A paper's runs that results/ does not hold yet, several side by side, resumable.

Jobs go through joblib, so `joblib.parallel_config(backend="dask")` (or ray) around `reproduce`
carries them to a cluster unchanged.
"""

import shlex
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path

from rich.console import Console

from torchcaps.analysis.measures import measure_of, read_measure
from torchcaps.errors import Interrupted, Misused, TorchcapsError, nearest
from torchcaps.experiments.chain import pretrained, same_run
from torchcaps.experiments.tables import RESULTS, Table, counted_lines, get_table, list_tables
from torchcaps.train.recipe import Recipe, with_root
from torchcaps.train.registry import get_recipe, has_protocol, recipes
from torchcaps.train.results import append_record, read, results_file
from torchcaps.train.run import claimed, folder_name

HOW = ("fit", "features", "how")
"""What a line says of a measure beside its data: what a probe saw and read, how was searched."""
Told = tuple[str, ...]


def measure_command(folder: Path, measures: tuple[str, ...]) -> str:
    return shlex.join(["torchcaps", "measure", str(folder), *measures, "--record"])


@dataclass(frozen=True)
class Job:
    recipe: str
    seed: int
    protocol: str = "ours"
    measures: tuple[str, ...] = ()
    """What the table shows beyond the recipe's own numbers, taken when the run is done."""
    recorded: bool = field(default=False, compare=False)
    """Whether the run is recorded and stands, and lacks these measures alone."""

    @property
    def folder(self) -> Path:
        return Path("runs") / folder_name(self.recipe, self.protocol, self.seed)

    @property
    def command(self) -> str:
        """The command that gives this one run again."""
        marked = [] if self.protocol == "ours" else ["--protocol", self.protocol]
        words = ["torchcaps", "train", self.recipe, "--seed", str(self.seed), *marked, "--record"]
        return shlex.join(words)

    @property
    def measuring(self) -> str:
        """The command that then takes what its table shows beyond that; empty: nothing."""
        return measure_command(self.folder, self.measures) if self.measures else ""

    @property
    def stands(self) -> bool:
        """Whether the finished run is here, so that more can be measured of it."""
        return (self.folder / "record.json").exists()


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
    """Rows with a recipe and fewer recorded runs than `seeds`, of whatever seed; every row gets one
    before any gets two.

    A row whose run is recorded and lacks a measure is there too, if its folder still stands; a run
    whose folder is gone and which fills no cell of these tables does not count.

    only: names of recipes, with * for any letters
    """
    chosen = [get_table(paper, name) for name in names] if names else list_tables(paper)
    known = {n: get_recipe(n) for n in recipes()}
    wanted = {n: kinds for n, r in known.items() if (kinds := _measures(r, chosen)) is not None}
    wanted = {n: kinds for n, kinds in wanted.items() if has_protocol(n, protocol)}
    if not wanted:
        raise TorchcapsError(f"{paper} {' '.join(names)}: no recipe fills it.")
    for text in only:
        if not any(fnmatchcase(n, text) for n in wanted):
            hint = nearest(text, list(wanted), most=0)
            raise Misused(f"No recipe of these tables is called {text!r}. {hint}".strip())
    if only:
        wanted = {n: k for n, k in wanted.items() if any(fnmatchcase(n, t) for t in only)}
    lines = counted_lines(paper, results)
    shown = {(c.metric, data) for t in chosen for c in t.columns.values() for data in c.data}
    tested: dict[tuple[str, int, str], set[Told]] = {}
    filling = set[tuple[str, int, str]]()
    for r in lines:
        told = (r["data"], *(r.get(key, "") for key in HOW))
        tested.setdefault((r["recipe"], r["seed"], r["protocol"]), set()).add(told)
        if (r["metric"], r["data"]) in shown:
            filling.add((r["recipe"], r["seed"], r["protocol"]))
    measured = {(r["recipe"], r["seed"], r["protocol"], measure_of(r["metric"])) for r in lines}
    jobs = []
    for name, kinds in wanted.items():
        whole = {
            seed
            for recipe, seed, under in tested
            if (recipe, under) == (name, protocol)
            and _asked(known[name]) <= tested[recipe, seed, under]
            and ((recipe, seed, under) in filling or Job(recipe, seed, under).stands)
        }
        for seed in sorted(whole):
            lacking = tuple(k for k in kinds if (name, seed, protocol, k) not in measured)
            job = Job(name, seed, protocol, lacking, recorded=True)
            if lacking and job.stands:
                jobs.append((0, job))
        others = (seed for seed in count() if seed not in whole)
        for number in range(len(whole), seeds):
            jobs.append((number, Job(name, next(others), protocol, tuple(kinds))))
    return [job for _, job in sorted(jobs, key=lambda ranked: ranked[0])]


@dataclass(frozen=True)
class Took:
    seconds: float
    as_today: bool
    """Whether that run was of the recipe as it is today, under the protocol that is asked for."""


def seconds_before(paper: str, results: Path, protocol: str = "ours") -> dict[str, Took]:
    """What a run of each recipe took: the quickest of its recorded runs, since others shared their
    device. Runs of another setting count where there are no others.
    """
    found: dict[str, Took] = {}
    today = [x for x in counted_lines(paper, results) if x["protocol"] == protocol]
    for lines, as_today in ((today, True), (read(results_file(paper, results))[0], False)):
        taken: dict[str, float] = {}
        for line in lines:
            if line.get("seconds") and line["recipe"] not in found:
                known = taken.get(line["recipe"], line["seconds"])
                taken[line["recipe"]] = min(known, line["seconds"])
        found |= {recipe: Took(seconds, as_today) for recipe, seconds in taken.items()}
    return found


def shown_beyond(recipe: Recipe) -> tuple[str, ...]:
    """Measures that tables show of a recipe's runs, and that its own are not."""
    known = recipe.paper in {table.paper for table in list_tables()}
    return tuple(_measures(recipe, list_tables(recipe.paper)) or ()) if known else ()


def _asked(recipe: Recipe) -> set[Told]:
    """What lines of its measures say of the sets that these name."""
    found = ((data, made.provenance) for made, data in map(read_measure, recipe.measures) if data)
    return {(data, *(said.get(key, "") for key in HOW)) for data, said in found}


def tested_on(recipe: Recipe) -> set[str]:
    """The data sets that its measures name."""
    return {data for text in recipe.measures if (data := read_measure(text)[1])}


def _measures(recipe: Recipe, chosen: list[Table]) -> dict[str, None] | None:
    """What tables that this recipe fills show beyond its own numbers; None: it fills none."""
    found = None
    own = {read_measure(text)[0].name for text in recipe.measures} | {"accuracy"}
    shown = {recipe.data.name, *tested_on(recipe)}
    for table in chosen:
        rows = {*table.rows, *(row for row, _ in table.derived.values())}
        if recipe.paper != table.paper or recipe.row not in rows:
            continue
        filled = [c for c in table.columns.values() if shown & set(c.data)]
        if recipe.table in (table.name, *table.sources) and filled:
            kinds = {measure_of(c.metric): None for c in filled}
            found = (found or {}) | {k: None for k in kinds if k and k not in own}
    return found


def run_job(job: Job, data_root: str, results: Path, beside: bool = False) -> Done:
    """Begin, go on with, or only record a run; what it says goes to a log beside it.

    beside: whether others run at the same time; on a GPU they then take steps in turns
    """
    import torch

    from torchcaps.train.evaluate import measure_run
    from torchcaps.train.loop import resume, start  # Lightning takes a second to import

    job.folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        recipe = replace(get_recipe(job.recipe, job.protocol), seed=job.seed)
        recipe = with_root(recipe, data_root)
        if gpu := torch.cuda.is_available():
            torch.compiler.reset()  # it gives up after eight compilations of one function
        in_turn = beside and gpu and recipe.hardware.processes == 1
        in_turn = in_turn or recipe.hardware.in_turn
        recipe = replace(recipe, hardware=replace(recipe.hardware, in_turn=in_turn))
        with job.folder.with_suffix(".log").open("a") as log:
            console = Console(file=log)
            with claimed(job.folder, recipe, console.print):
                if (job.folder / "recipe.json").exists():
                    if not same_run(job.folder, recipe):
                        said = f"{job.folder} holds a run of another recipe; move it away."
                        return Done(job, said)
                    run = resume(job.folder, console, job.command, in_turn=in_turn)
                else:
                    ready = pretrained(recipe, console, results)
                    run = start(ready, job.folder, console, job.command)
        append_record(run.record(), results)
        if job.measures:
            root = Path(data_root) if data_root else None
            for taken in measure_run(run.folder, list(job.measures), root, job.measuring):
                append_record(taken, results)
    except Interrupted:  # Ctrl-C is meant for all
        raise
    except Exception as error:  # one run that fails leaves the others
        return Done(job, str(error).strip().split("\n")[0] or type(error).__name__)
    return Done(job)


def reproduce(
    jobs: list[Job], at_once: int = 1, data_root: str = "", results: Path = RESULTS
) -> Iterator[Done]:
    """Run them, and say of each when it is done, in the order in which they end."""
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=at_once, return_as="generator_unordered")
    beside = at_once != 1
    try:
        for done in pool(delayed(run_job)(job, data_root, results, beside) for job in jobs):
            if done is not None:
                yield done
    except BrokenProcessPool:
        said = "The process of a run was killed, perhaps for memory. Run it again to go on"
        raise TorchcapsError(f"{said}, with a smaller --at-once.") from None
