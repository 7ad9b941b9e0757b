"""Commands for sweeps: search over the fields of a recipe, show, stop and resume a sweep."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from torchcaps.cli.console import console, print_json, say
from torchcaps.cli.parse import AtOnce, Env, Folder, On, load_plugins, parse, without, wrong
from torchcaps.cli.train import long_option, read_recipe

if TYPE_CHECKING:
    from torchcaps.sweeps.folder import Sweep

SWEEP = """\
torchcaps sweep RECIPE --over FIELD=VALUES … [options] [--field value …]
torchcaps sweep show | stop | resume SWEEP

  torchcaps sweep demo/capsnet --over optimizer.lr=1e-3,3e-3 model.num_iters=1,2,3
  torchcaps sweep demo/capsnet --over optimizer.lr=log:1e-4..1e-1 --trials 50 --search tpe
  torchcaps sweep capsnet-small --data folder:~/photos --over batch_size=32..256 --epochs 5
  torchcaps sweep show demo-capsnet        the trials, the best ten; --json, --html report.html
  torchcaps sweep stop demo-capsnet        end the trials with a checkpoint
  torchcaps sweep resume demo-capsnet      continue, also with more --trials

VALUES: a,b,c or lo..hi or log:lo..hi. Fields of the recipe are options as in torchcaps train.
  --trials N       number of trials; default: the whole grid, or 20
  --search KIND    grid, random or tpe (Optuna); default: grid of listed values, else random
  --stop-early     end trials that fall behind
  --hours H        device hours after which no trial starts
  --seeds N        runs of the best trial with other seeds, evaluated on the test split (3)
  --on PLACE       local, slurm:partition=…,time=…,gpus=… or ray:HOST:PORT; --at-once N
  --env NAME …     environment variables that trials elsewhere get too
  --out FOLDER     folder of the sweep; --dry: print the trials; --json: print the result"""

Name = Annotated[str, Positional, arg(metavar="SWEEP")]
Over = Annotated[tuple[str, ...], arg(metavar="FIELD=VALUES")]
Count = Annotated[int, arg(metavar="INT", help_behavior_hint="")]
Hours = Annotated[float, arg(metavar="HOURS", help_behavior_hint="")]


def sweep(words: list[str]) -> None:
    """Search over the fields of a recipe: grid, random or TPE."""
    if words and words[0] in SUBCOMMANDS:
        return parse(SUBCOMMANDS[words[0]], words[1:], f"torchcaps sweep {words[0]}")
    if {"-h", "--help"} & set(words):
        print(SWEEP)
        return None
    if not words or words[0].startswith("-"):
        raise wrong("name a recipe: torchcaps sweep demo/capsnet --over …", "torchcaps sweep")
    rest, plugins = without(words[1:], ("--plugin",))
    load_plugins(plugins.get("--plugin", ()))
    from torchcaps.data.registry import shared_loads

    with shared_loads():  # a model on your own images reads them first
        _sweep(words[0], [long_option(word) for word in rest])
    return None


def _sweep(name: str, words: list[str]) -> None:
    import tyro

    from torchcaps.training.recipe import Recipe

    default, rest, _ = read_recipe(name, words)

    def run(
        recipe: Annotated[Recipe, tyro.conf.arg(name="")] = default,
        over: Over = (),
        trials: Count = 0,
        search: Literal["", "grid", "random", "tpe"] = "",
        stop_early: bool = False,
        hours: Hours = 0.0,
        seeds: Count = 3,
        on: On = "local",
        env: Env = (),
        at_once: AtOnce = 0,
        out: Folder = None,
        dry: bool = False,
        json: bool = False,
    ) -> None:
        from torchcaps.places.run import check_place, with_env
        from torchcaps.sweeps.driver import open_sweep, plan, run_sweep
        from torchcaps.sweeps.space import read_over

        settings = plan(
            recipe, read_over(over), trials=trials, search=search, stop_early=stop_early,
            hours=hours, seeds=seeds,
        )  # fmt: skip
        place = with_env(on, env)
        check_place(place)
        if dry:
            return _print_plan(settings, json)
        opened = open_sweep(settings, out)
        say_progress = (lambda _: None) if json else say
        say_progress(f"{opened.folder}: {settings.trials} trials, {settings.search} search.")
        show_sweep(run_sweep(opened, place, at_once, say_progress), json)

    parse(run, rest, f"torchcaps sweep {name}")


def _print_plan(settings: Any, json: bool) -> None:
    """The trials that would run; tpe chooses all but the first by results."""
    from torchcaps.sweeps.search import make_search

    trials: list[dict[str, Any]] = []
    if settings.search != "tpe":
        search = make_search(settings.search, settings.space, settings.recipe.seed, Path(), True)
        trials = [search.ask(number) for number in range(settings.trials)]
    if json:
        return print_json({"search": settings.search, "trials": trials or settings.trials})
    for number, values in enumerate(trials):
        say(f"t{number:04}  " + "  ".join(f"{field}={value}" for field, value in values.items()))
    say(f"{settings.trials} trials, {settings.search} search; then {settings.seeds} final runs.")


def show(name: Name, /, json: bool = False, html: Folder = None, force: bool = False) -> None:
    """Show a sweep: its best trials, what failed, and the final runs.

    Args:
        name: Folder of the sweep, or its name in runs/sweeps.
        json: Print everything as JSON.
        html: Write a report to this file: tables, parallel coordinates, importance and curves.
        force: Replace the file of --html.
    """
    from torchcaps.outputs import check_file
    from torchcaps.sweeps.folder import Sweep

    if html is not None:
        check_file(html, force=force)
    opened = Sweep.open(name)
    if html is not None:
        from torchcaps.sweeps.report import write_report

        return say(f"report: {write_report(opened, html)}")
    show_sweep(opened, json)


def stop(name: Name, /) -> None:
    """End the trials of a sweep with a checkpoint after their next validation.

    Args:
        name: Folder of the sweep, or its name in runs/sweeps.
    """
    from torchcaps.sweeps.folder import ALL, Sweep

    opened = Sweep.open(name)
    opened.stop_file.write_text(ALL)
    say(f"{opened.folder} stops. Continue with: torchcaps sweep resume {opened.folder}")


def resume(
    name: Name,
    /,
    trials: Count = 0,
    hours: Hours = 0.0,
    on: On = "local",
    env: Env = (),
    at_once: AtOnce = 0,
    plugin: Annotated[tuple[str, ...], arg(metavar="FILE|MODULE")] = (),
    json: bool = False,
) -> None:
    """Continue a sweep that was stopped or killed, or extend it.

    Args:
        name: Folder of the sweep, or its name in runs/sweeps.
        trials: Number of trials in all; default: as before.
        hours: Device hours in all; default: as before.
        on: Where trials run: local, slurm:partition=… or ray:HOST:PORT.
        env: Environment variables of this process that trials elsewhere get too, by name.
        at_once: Trials side by side.
        plugin: Plug-ins of the sweep.
        json: Print the result as JSON.
    """
    from torchcaps.errors import UsageError
    from torchcaps.places.run import with_env
    from torchcaps.sweeps.driver import run_sweep
    from torchcaps.sweeps.folder import Sweep

    load_plugins(plugin)
    opened = Sweep.open(name)
    settings = opened.settings
    if trials and (trials < settings.trials or settings.search == "grid"):
        raise UsageError(f"--trials {trials}: {opened.folder} has {settings.trials} trials.")
    opened = opened.with_settings(trials=trials or settings.trials, hours=hours or settings.hours)
    opened.write()
    place = with_env(on, env)
    show_sweep(run_sweep(opened, place, at_once, (lambda _: None) if json else say), json)


SUBCOMMANDS = {"show": show, "stop": stop, "resume": resume}


def show_sweep(opened: "Sweep", json: bool) -> None:
    """Print the best trials and the final runs of a sweep."""
    from rich.table import Table

    from torchcaps.sweeps.folder import objective
    from torchcaps.sweeps.report import state_counts, summary

    if json:
        return print_json(summary(opened))
    name = objective(opened.settings.recipe)
    table = Table("trial", *opened.settings.space, name, "epoch", "state", box=None)
    for trial in opened.ranked[:10]:
        values = [str(trial.values[field]) for field in opened.settings.space]
        table.add_row(
            trial.folder.name, *values, f"{trial.value:.4f}", str(trial.epoch), trial.state
        )
    console.print(table)
    for trial in opened.trials:
        if trial.error:
            say(f"{trial.folder.name} {trial.state}: {trial.error}", style="yellow")
    say(f"{opened.folder}: {state_counts(opened)}; {opened.seconds / 3600:.2f} device hours.")
    for run in opened.final:
        results = "  ".join(
            f"{r['metric']} {r['value']:.4f} ({r['data']})"
            for r in run.results
            if r["split"] == "test"
        )
        say(f"{run.folder}  test: {results}")
    if opened.best is not None and not opened.final:
        say(f"The best trial was chosen on validation data: {opened.best.folder}")
