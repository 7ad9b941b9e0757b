"""The driver of a sweep: ask for values, give trials out, tell results, stop what falls behind."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torchcaps.data.registry import shared_loads
from torchcaps.errors import Interrupted, TorchcapsError, UsageError
from torchcaps.models.registry import MODELS
from torchcaps.outputs import check_outside_runs
from torchcaps.places.job import Job, Outcome
from torchcaps.places.local import Local
from torchcaps.places.run import Place, Runner, check_place, get_place, run_jobs
from torchcaps.sweeps.early import Halving
from torchcaps.sweeps.folder import ALL, EARLY, SWEEPS, Settings, Sweep, Trial, better, objective
from torchcaps.sweeps.search import Search, check_search, make_search
from torchcaps.sweeps.space import grid, is_grid, read_space
from torchcaps.training.auto_recipe import auto_recipe
from torchcaps.training.load import data_of
from torchcaps.training.recipe import DataSpec, Recipe, to_dict, with_fields
from torchcaps.training.registry import get_recipe, is_recipe

TRIALS = 20
"""Trials of a search that does not list its values, unless told."""
AHEAD = 5
"""tpe asks for at most a fifth of the trials at the same time, so that it learns from results."""
SAME_ERRORS = 3
"""A sweep whose first trials all fail with one error is stopped."""
Report = Callable[[str], object]


def sweep(
    recipe: Recipe | str,
    over: Mapping[str, Any],
    *,
    data: str = "",
    trials: int = 0,
    search: str = "",
    stop_early: bool = False,
    hours: float = 0.0,
    seeds: int = 3,
    on: str = "local",
    at_once: int = 0,
    out: str | Path | None = None,
    quiet: bool = False,
    **fields: Any,
) -> Sweep:
    """Search over fields of a recipe; the same call again continues it.

    >>> over = {"optimizer.lr": "log:1e-4..1e-2", "batch_size": [16, 32]}
    >>> options = {"data": "digits", "trials": 2, "seeds": 1, "steps": 5, "quiet": True}
    >>> sweep = torchcaps.sweep("convnet-avg-small", over, **options)
    >>> len(sweep.trials), list(sweep.best.values), len(sweep.final)
    (2, ['optimizer.lr', 'batch_size'], 1)

    recipe: a Recipe, its name, or a model's name with `data`
    over: by field, a list of values, a `Range`, or as in `torchcaps sweep --over`
    search: grid, random or tpe; default: grid if all values are listed, else random
    stop_early: end trials that fall behind; hours: device hours after which no trial starts
    seeds: runs of the best trial with other seeds, evaluated on the test split
    on, at_once: where trials run and how many at the same time; see `torchcaps.places`
    out: folder of the sweep; default: runs/sweeps/<recipe>
    fields: fields of the recipe, as in `fit`: epochs=5, optimizer={"kind": "sgd"}
    """
    base = with_fields(_recipe(recipe, data), fields)
    settings = plan(
        base, over, trials=trials, search=search, stop_early=stop_early, hours=hours, seeds=seeds
    )
    opened = open_sweep(settings, Path(out) if out else None)
    return run_sweep(opened, on, at_once, (lambda _: None) if quiet else print)


def _recipe(recipe: Recipe | str, data: str) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    if not is_recipe(recipe) and recipe.partition(".")[0] in MODELS and data:
        spec = DataSpec(name=data)
        with shared_loads():
            return auto_recipe(recipe, data_of(spec), spec)[0]
    return with_fields(get_recipe(recipe), {"data": {"name": data}} if data else {})


def plan(
    recipe: Recipe,
    over: Mapping[str, Any],
    *,
    trials: int = 0,
    search: str = "",
    stop_early: bool = False,
    hours: float = 0.0,
    seeds: int = 3,
) -> Settings:
    """Settings of a sweep, with everything checked that needs no training."""
    if trials < 0 or seeds < 0 or hours < 0:
        raise UsageError("trials, seeds and hours are not negative.")
    if search not in ("", "grid", "random", "tpe"):
        raise UsageError(f"search={search!r} is not one of grid, random, tpe.")
    space = read_space(recipe, over)
    size = len(list(grid(space))) if is_grid(space) else 0
    kind = search or ("grid" if size and trials in (0, size) else "random")
    trials = trials or (size if kind == "grid" else TRIALS)
    check_search(kind, space, trials)
    return Settings(
        recipe=recipe, space=space, search=kind, trials=trials, seeds=seeds,
        stop_early=stop_early, hours=hours,
    )  # fmt: skip


def open_sweep(settings: Settings, out: Path | None) -> Sweep:
    """The sweep of these settings: continued where it exists, else a new folder.

    A given folder with another sweep is refused; the usual one is numbered.
    """
    folder, number = out or SWEEPS / settings.recipe.name.replace("/", "-"), 2
    while (folder / "sweep.json").exists():
        sweep = Sweep.open(folder)
        changes = settings.changes(sweep.settings)
        if not changes:
            longer = sweep.with_settings(trials=settings.trials, hours=settings.hours)
            longer.write()
            return longer
        if out is not None:
            raise UsageError(
                f"{folder} is a sweep with another {', '.join(changes)}. Continue it with "
                f"torchcaps sweep resume {folder}, or choose another --out."
            )
        usual = SWEEPS / settings.recipe.name.replace("/", "-")
        folder, number = usual.with_name(f"{usual.name}-{number}"), number + 1
    check_outside_runs(folder)
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty: give --out a new or empty folder.")
    return Sweep.create(folder, settings)


def _place(on: str, at_once: int, settings: Settings) -> Place:
    if check_place(on) == "local" and settings.stop_early:
        return Local(max(1, at_once))  # the driver must be free to look at the trials
    return get_place(on, at_once)


def run_sweep(sweep: Sweep, on: str = "local", at_once: int = 0, report: Report = print) -> Sweep:
    """Run what a sweep lacks: trials, then the best one with other seeds."""
    settings = sweep.settings
    recipe = settings.recipe
    if settings.stop_early and recipe.schedule.kind in ("one_cycle", "cosine"):
        report(
            f"The schedule {recipe.schedule.kind} depends on the length of the run: early values "
            "may mislead --stop-early. Consider --schedule.kind constant."
        )
    sweep.stop_file.unlink(missing_ok=True)
    maximize = better(recipe, 1.0, 0.0)
    search = make_search(settings.search, settings.space, recipe.seed, sweep.folder, maximize)  # pyright: ignore
    try:
        with Runner(_place(on, at_once, settings)) as runner:
            _Driver(sweep, search, runner, report).run()
        if not sweep.stop_file.exists() and settings.seeds and sweep.best is not None:
            _finals(sweep, sweep.best, on, at_once, report)
    except (Interrupted, KeyboardInterrupt):
        report(f"Continue with: torchcaps sweep resume {sweep.folder}")
        raise
    return sweep


class _Driver:
    """One driver's work on a sweep."""

    def __init__(self, sweep: Sweep, search: Search, runner: Runner, report: Report):
        self.sweep, self.search, self.runner, self.report = sweep, search, runner, report
        self.settings = sweep.settings
        self.known = {trial.number: trial for trial in sweep.trials}
        self.halving = Halving(lambda new, old: better(self.settings.recipe, new, old))
        self.at_once = runner.place.at_once
        if self.settings.search == "tpe":
            self.at_once = min(self.at_once, max(1, self.settings.trials // AHEAD))
        self.stopping = False

    def run(self) -> None:
        for trial in self.known.values():
            self._tell(trial)
        waiting = [n for n in range(self.settings.trials) if not self._ended(n)]
        while True:
            self._look_for_stop()
            while waiting and len(self.runner.running) < self.at_once and not self._over():
                self._give(waiting.pop(0))
            if not self.runner.running:
                return
            for outcome in self.runner.collect():
                self._end(outcome)
            if self.settings.stop_early:
                self._stop_late()

    def _ended(self, number: int) -> bool:
        return number in self.known and self.known[number].ended

    def _tell(self, trial: Trial) -> None:
        if trial.ended:
            self.search.tell(trial.number, None if trial.state == "failed" else trial.value)

    def _over(self) -> bool:
        """True if no further trial starts: the sweep was stopped, or its hours are used up."""
        spent = sum(trial.seconds for trial in self.known.values()) / 3600
        return self.stopping or 0 < self.settings.hours <= spent

    def _give(self, number: int) -> None:
        folder = self.sweep.trial_folder(number)
        trial = self.known.get(number) or Trial(folder, number, self.search.ask(number))
        trial.write()
        self.known[number] = trial
        recipe = self.sweep.trial_recipe(trial.values)
        self.runner.give([_job("train_trial", recipe, folder, self.runner.place)])

    def _end(self, outcome: Outcome) -> None:
        number = int(Path(outcome.job.arguments["folder"]).name[1:])
        trial = Trial.read(self.sweep.trial_folder(number))
        if not trial.ended:  # lost with its process, or the whole sweep stops
            state = "lost" if outcome.error else "running"
            trial = Trial(trial.folder, number, trial.values, state=state, error=outcome.error)
            trial.write()
        self.known[number] = trial
        self._tell(trial)
        self.report(line_of(trial, objective(self.settings.recipe)))
        ended = [t for t in self.known.values() if t.ended]
        alike = {re.sub(r"[\d.]+", "", t.error) for t in ended}  # numbers may be the trial's own
        if len(ended) == SAME_ERRORS and len(alike) == 1 and trial.error:
            raise TorchcapsError(f"The first {SAME_ERRORS} trials failed alike: {trial.error}")

    def _look_for_stop(self) -> None:
        """`torchcaps sweep stop`: running trials end with a checkpoint after their validation."""
        if self.stopping or not self.sweep.stop_file.exists():
            return
        self.stopping = True
        for job in self.runner.running.values():
            _ask_to_stop(Path(job.arguments["folder"]), ALL)

    def _stop_late(self) -> None:
        name = objective(self.settings.recipe)
        for trial in list(self.known.values()):
            if not trial.run.metrics_file.exists():
                continue
            values = [line[name] for line in trial.run.metrics if name in line]
            if self.halving.behind(trial.number, values) and not trial.ended:
                _ask_to_stop(trial.folder, EARLY)


def _ask_to_stop(folder: Path, why: str) -> None:
    if folder.is_dir() and not (folder / "stop").exists():
        (folder / "stop").write_text(why)


def _job(function: str, recipe: Recipe, folder: Path, place: Place) -> Job:
    return Job(
        f"torchcaps.sweeps.trial:{function}",
        {"recipe": to_dict(recipe), "folder": str(folder), "in_turn": place.shares_device},
        name=folder.name,
        log=str(folder.with_suffix(".log")),
        nodes=recipe.hardware.num_nodes,
        processes=recipe.hardware.processes,
    )


def _finals(sweep: Sweep, best: Trial, on: str, at_once: int, report: Report) -> None:
    """Train the best recipe with seeds that chose nothing, and evaluate it on the test split."""
    place = get_place(on, at_once)
    jobs = [
        _job("train_final", sweep.final_recipe(best, seed), sweep.final_folder(best, seed), place)
        for seed in sweep.final_seeds(best)
    ]
    jobs = [job for job in jobs if not (Path(job.arguments["folder"]) / "record.json").exists()]
    if jobs:
        report(f"{best.folder.name} is the best trial: running it with {len(jobs)} other seeds.")
    for outcome in run_jobs(jobs, place):
        report(f"{outcome.job.name}: {outcome.error or 'finished'}")


def line_of(trial: Trial, name: str) -> str:
    """A trial in a line."""
    values = "  ".join(f"{field}={value}" for field, value in trial.values.items())
    if trial.error or trial.value is None:
        return f"{trial.folder.name}  {trial.state}  {values}  {trial.error}".rstrip()
    return (
        f"{trial.folder.name}  {name} {trial.value:.4f}  {values}  "
        f"({trial.state}, epoch {trial.epoch}, {trial.seconds:.0f} s)"
    )
