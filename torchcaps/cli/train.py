"""Commands that train. Heavy imports are inside the functions, so that help is quick."""

import dataclasses
import os
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from torchcaps.cli.console import console, print_json, say
from torchcaps.cli.parse import Folder, load_plugins, parse, without, wrong
from torchcaps.escape import Console

TRAIN = """\
torchcaps train RECIPE [--field value …]
torchcaps train MODEL --data DATA [--field value …]

  torchcaps train demo/capsnet --epochs 3               a small CapsNet on the embedded digits
  torchcaps train auto --data folder:~/photos           your own images, one subfolder per class
  torchcaps train capsnet-small --data folder:~/photos  with a model of your choice
  torchcaps train sparse-small --data folder:~/photos   without labels
  torchcaps train RECIPE --config FILE                  with the fields of a JSON file
  torchcaps train RECIPE --plugin my_model.py           with your own routing, model or metric
  torchcaps train RECIPE --help                         the usual fields; --help-all: every field
  torchcaps list models                                 the models
  torchcaps paper list                                  the papers' recipes

The run is a folder in runs/. After Ctrl-C, `torchcaps resume` continues it."""

RESUME = """\
torchcaps resume RUN [--optimizer.lr 1e-4] [--json] [--plugin FILE]

  torchcaps resume runs/demo-capsnet-s0                      continue an interrupted run
  torchcaps resume runs/demo-capsnet-s0 --optimizer.lr 1e-4  with a smaller learning rate

The result is bit-identical to an uninterrupted run (CPU). Fields of optimizer and schedule can be
replaced, which the run's record states, and those of this machine: --data.root,
--hardware.in-turn, --checkpoint-seconds, --track, --record."""

SHORT = {"--data-root": "--data.root", "--data": "--data.name", "--from": "--start-from"}
"""Options of `train` that need no group."""
USUAL = {
    "data": ("data.name", "data.augment", "data.root", "data.per_class", "data.balanced"),
    "training": ("epochs", "batch_size", "seed", "start_from", "metrics"),
    "model": (),
    "task": (),
    "optimizer": ("optimizer.kind", "optimizer.lr", "optimizer.weight_decay", "optimizer.ema"),
    "schedule": ("schedule.kind", "schedule.warmup"),
    "hardware": ("hardware.accelerator", "hardware.devices", "hardware.precision"),
    "bookkeeping": ("record", "track"),
}
"""Fields that the short help shows; of model and task the first ones."""
MAX_FIELDS = {"model": 5, "task": 2}


def train(words: list[str]) -> None:
    """Train a recipe, or a model on your own images."""
    if not words:
        raise wrong("name a recipe: torchcaps train demo/capsnet.", "torchcaps train")
    if words[0] in ("-h", "--help"):
        print(TRAIN)
        return
    if any(word.partition("=")[0] in ("--data", "--data.name") for word in words[:1]):
        words = ["auto", *words]
    if words[0].startswith("-"):
        raise wrong("the recipe comes first: torchcaps train RECIPE …", "torchcaps train")
    rest, plugins = without(words[1:], ("--plugin",))
    load_plugins(plugins.get("--plugin", ()))
    from torchcaps.data.registry import shared_loads
    from torchcaps.models.base import SIZES
    from torchcaps.training.run import check_out

    options = [long_option(word) for word in rest]
    decided = {f"--model.{name.replace('_', '-')}" for name in SIZES}
    for word in options:
        if word.partition("=")[0].replace("_", "-") in decided:
            raise wrong(f"{word.partition('=')[0]}: the data decides this.", "torchcaps train")
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        _, values = without(options, ("--out",))
        check_out(Path(values["--out"][-1]) if "--out" in values else None)
    with shared_loads():  # a model on your own images reads them first
        _train(words[0], options)


def long_option(word: str) -> str:
    """An option by its name among the fields: --data is --data.name."""
    return re.sub(r"^--[a-z-]+(?==|$)", lambda m: SHORT.get(m[0], m[0]), word)


def _train(name: str, words: list[str]) -> None:
    import tyro

    from torchcaps.training.recipe import Recipe

    default, rest, plan = read_recipe(name, words)
    if {"-h", "--help"} & set(rest):
        print(_short_help(name, default))
        return
    rest = ["--help" if word == "--help-all" else word for word in rest]
    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0" and not any(
        word.partition("=")[0] == "--out" for word in rest
    ):
        raise wrong("--max-restarts needs the folder of the run: --out RUN.", "torchcaps train")

    def run(
        recipe: Annotated[Recipe, tyro.conf.arg(name="")] = default,
        out: Folder = None,
        json: bool = False,
        find_lr: bool = False,
    ) -> None:
        """Train a recipe. --task NAME and --model NAME replace a whole group of fields.

        Args:
            recipe: The run.
            out: Folder of the run; default: runs/<recipe>-s<seed>.
            json: Print the record as JSON at the end.
            find_lr: Suggest a learning rate by a range test of 100 steps instead of training.
        """
        if find_lr:
            return _find_lr(recipe, json)
        from torchcaps.papers.pretraining import pretrained
        from torchcaps.papers.records import RESULTS
        from torchcaps.training.loop import resume, start

        to = Console(stderr=True) if json else console
        if plan:
            to.print(plan(recipe), highlight=False, markup=False, soft_wrap=True)
        if out is not None and _restarted(out, recipe):
            return show_record(resume(out, to), json)
        results = RESULTS if recipe.record else None
        show_record(start(pretrained(recipe, to, results), out, to), json)

    parse(run, rest, f"torchcaps train {name}")


def _find_lr(recipe: Any, json: bool) -> None:
    """Print the losses of a learning-rate range test, and its suggestion."""
    from torchcaps.training.lr_range import range_test

    rates, losses, suggestion = range_test(recipe)
    if json:
        return print_json({"rates": rates, "losses": losses, "suggestion": suggestion})
    for n in range(0, len(rates), max(1, len(rates) // 16)):
        say(f"{rates[n]:9.1e}  loss {losses[n]:.4f}")
    say(f"suggestion: --optimizer.lr {suggestion:.1e}")


def _short_help(name: str, recipe: Any) -> str:
    """The usual fields of a recipe with their values, in at most 40 lines."""
    lines = [f"torchcaps train {name} [--field value …]", ""]
    for group, names in USUAL.items():
        if group in MAX_FIELDS:
            first = [f.name for f in dataclasses.fields(getattr(recipe, group))]
            own = [n for n in first if n not in _inherited(type(getattr(recipe, group)))]
            names = tuple(f"{group}.{n}" for n in own[: MAX_FIELDS[group]])
        for field in names:
            owner, value = recipe, recipe
            for part in field.split("."):
                owner, value = value, getattr(value, part)
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
            option = "--" + field.replace("_", "-")
            option = {long: short for short, long in SHORT.items()}.get(option, option)
            text = _field_help(type(owner), field.rpartition(".")[2])
            default = f"({textwrap.shorten(shown, 22, placeholder=' …') or 'none'})"
            room = 77 - max(25, len(option)) - len(default)
            lines.append(
                f"  {option:24} {textwrap.shorten(text, room, placeholder=' …')} {default}"
            )
    more = "--out FOLDER, --config FILE, --plugin FILE, --task NAME, --model NAME"
    return "\n".join([*lines, "", f"Also: {more},", "--json, --find-lr. Every field: --help-all."])


def _inherited(kind: type) -> set[str]:
    return {f.name for base in kind.__mro__[1:-1] for f in dataclasses.fields(base)}


def _field_help(kind: type, name: str) -> str:
    """The first sentence of the string below a dataclass field."""
    import ast
    import inspect

    for owner in kind.__mro__[:-1]:
        (body,) = ast.parse(inspect.getsource(owner)).body
        assert isinstance(body, ast.ClassDef)
        for field, text in zip(body.body, body.body[1:], strict=False):
            named = isinstance(field, ast.AnnAssign) and ast.unparse(field.target) == name
            if named and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                return re.split(r"[.;] ", " ".join(str(text.value.value).split()))[0].rstrip(".")
    return ""


def _restarted(out: Path, recipe: Any) -> bool:
    """True if torchrun starts this again because a process of it died: then its run continues."""
    from torchcaps.training.recipe import differences
    from torchcaps.training.run import Run

    run = Run(out)
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" or not run.recipe_file.exists():
        return False
    stored = run.recipe()
    return stored.seed == recipe.seed and not differences(stored, recipe)


def read_recipe(name: str, words: list[str]) -> tuple[Any, list[str], Callable[[Any], str] | None]:
    """The recipe of a name with the groups and the file that the words name; the other words; and
    for a model on your own images a function that describes its training.
    """
    from dataclasses import replace

    from torchcaps.errors import nearest
    from torchcaps.models.registry import MODELS, model_config
    from torchcaps.training.recipe import overlaid
    from torchcaps.training.registry import get_recipe, is_recipe, recipes
    from torchcaps.training.tasks import task_config

    rest, values = without(words, ("--task", "--model", "--config"))
    last = {option: texts[-1] for option, texts in values.items()}
    plan = None
    if is_recipe(name):
        printed = re.search(r"--protocol[= ]paper( |$)", " ".join(words))
        recipe = get_recipe(name, "paper" if printed else "ours")
    elif name == "auto" or ("/" not in name and name.partition(".")[0] in MODELS):
        recipe, plan = _own_data(name, rest)
        rest, _ = without(rest, ("--data.name",))  # the recipe names it, with a size for the model
    else:
        near = nearest(name, [*recipes(), *MODELS], most=0)
        see = "See torchcaps list models and torchcaps paper list."
        raise wrong(f"unknown recipe or model {name!r}. {near or see}", "torchcaps train")
    if "--config" in last:
        recipe = overlaid(recipe, Path(last["--config"]))
    if "--task" in last:
        recipe = replace(recipe, task=task_config(last["--task"])())
    if "--model" in last:
        recipe = replace(recipe, model=model_config(last["--model"]))
    return recipe, rest, plan


def _own_data(name: str, words: list[str]) -> tuple[Any, Callable[[Any], str]]:
    """A recipe for a model and the data that the words name."""
    from torchcaps.training.auto_recipe import auto_recipe, choose_model
    from torchcaps.training.load import data_of
    from torchcaps.training.recipe import DataSpec

    _, values = without(words, ("--data.name", "--data.root", "--data.seed", "--data.per-class"))
    last = {option: texts[-1] for option, texts in values.items()}
    data = last.get("--data.name", "")
    if {"-h", "--help", "--help-all"} & set(words):
        data = data or "digits"
    if not data:
        raise wrong(f"name the data: torchcaps train {name} --data folder:PATH.", "torchcaps train")
    numbers = {name: last.get(f"--data.{name}", "0") for name in ("seed", "per-class")}
    seed, per_class = (int(n) if n.isdecimal() else 0 for n in numbers.values())
    spec = DataSpec(name=data, root=last.get("--data.root", ""), seed=seed, per_class=per_class)
    name, spec, remark = choose_model(name, spec)
    recipe, plan = auto_recipe(name, data_of(spec), spec)
    return recipe, lambda recipe: "\n".join(filter(None, (remark, plan(recipe))))


def resume(words: list[str]) -> None:
    """Resume an interrupted run."""
    if words and words[0] not in ("-h", "--help") and not words[0].startswith("-"):
        rest, plugins = without(words[1:], ("--plugin",))
        load_plugins(plugins.get("--plugin", ()))
        return _resume(Path(words[0]), [long_option(word) for word in rest])
    print(RESUME)
    if not words or words[0] not in ("-h", "--help"):
        raise wrong("name the run: torchcaps resume runs/demo-capsnet-s0.", "torchcaps resume")


def _resume(folder: Path, words: list[str]) -> None:
    import tyro

    from torchcaps.training.recipe import Recipe
    from torchcaps.training.run import Run

    stored = Run.open(folder).recipe()

    def run(recipe: Annotated[Recipe, tyro.conf.arg(name="")] = stored, json: bool = False) -> None:
        """Resume a run. Fields of optimizer, schedule and machine can be replaced.

        Args:
            recipe: The run.
            json: Print the record as JSON at the end.
        """
        from torchcaps.training.loop import resume as continue_run

        to = Console(stderr=True) if json else console
        show_record(continue_run(folder, to, recipe=recipe if words else None), json)

    parse(run, words, f"torchcaps resume {folder}")


def show_record(run: Any, json: bool) -> None:
    """Print the results of a run; append them to results/ if the recipe says so."""
    import torch.distributed as dist
    from rich.table import Table

    from torchcaps.metrics.reference import with_intervals
    from torchcaps.papers.records import RESULTS, append_record
    from torchcaps.papers.reproduce import eval_command, shown_beyond
    from torchcaps.training.evaluate import run_reference

    if dist.is_initialized() and dist.get_rank():  # of many processes, one prints
        return
    record, recipe = run.record(), run.recipe()
    if recipe.record:
        append_record(record, RESULTS)
    lines = with_intervals(record["results"])
    known = None if recipe.record else run_reference(run)  # tables have baselines of their own
    if json:
        more = {"reference": known.as_dict()} if known else {}
        return print_json({"folder": str(run.folder), **record, "results": lines, **more})
    table = Table("data", "split", "images", "metric", "value", "95 % interval")
    table.columns[0].overflow = "fold"
    for r in lines:
        interval = "{:.4f} to {:.4f}".format(*r["interval_95"]) if "interval_95" in r else ""
        count = f"{r['n']:,}" if "n" in r else ""
        table.add_row(r["data"], r["split"], count, r["metric"], f"{r['value']:.4f}", interval)
    console.print(table)
    if known:
        for line in known.lines():
            say(f"baseline on the same test images: {line}")
        say(known.verdict("This model", run.accuracy))
    facts = f"{record['parameters']:,} parameters, {record['seconds']:.0f} s, run in"
    console.print(facts, str(run.folder))
    if recipe.record and (more := shown_beyond(recipe)):
        say(f"The paper's table has more metrics: {eval_command(run.folder, more)}")


def demo(out: Folder = None, force: bool = False) -> None:
    """Train a small CapsNet and a small ConvNet on digits, and write a report on both.

    After an interruption the same command continues.

    Args:
        out: Folder of the two runs; default: runs/demo, numbered if it exists.
        force: Replace the runs and the report of an earlier demo.
    """
    from rich.table import Table

    from torchcaps.explorer import write_report
    from torchcaps.outputs import unfinished
    from torchcaps.training.demo import CLEAN, TRANSFORMED, demo_folder, run_demo

    folder = demo_folder(out, force)
    with unfinished(folder, "demo"):
        runs = run_demo(folder, console)
        report = write_report(runs, folder / "report.html")
    title = "Test accuracy on 500 digits"
    table = Table("model", "parameters", "clean, %", "affine, %", title=title)
    for run in runs:
        record = run.record()
        accuracy = [r for r in record["results"] if r["metric"] == "accuracy"]
        values = {r["data"]: r["value"] for r in accuracy if r["split"] == "test"}
        table.add_row(
            record["recipe"]["row"], f"{record['parameters']:,}",
            f"{100 * values[CLEAN]:.1f}", f"{100 * values[TRANSFORMED]:.1f}",
        )  # fmt: skip
    console.print(table)
    say(f"report: {report}")
