"""Commands that train. Heavy imports stand inside, so that help is quick."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console

from torchcaps.cli.parse import Folder, parse, wrong
from torchcaps.cli.saying import RESULTS, console, print_json, say_beyond
from torchcaps.errors import nearest

TRAIN = """\
torchcaps train RECIPE [--field value …]
torchcaps train MODEL --data DATA [--field value …]

  torchcaps train demo/capsnet --epochs 3               a small CapsNet on the embedded digits
  torchcaps train capsnet-small --data folder:~/photos  your own images, in a folder a class
  torchcaps train sparse-small --data folder:~/photos   without labels
  torchcaps train RECIPE --config FILE                  fields from a file, as a run's recipe.json
  torchcaps train RECIPE --help                         the fields of a recipe, each replaceable
  torchcaps list recipes                                the recipes; list models: the models

A run stands in runs/; Ctrl-C leaves one that `torchcaps resume` goes on with."""

RESUME = """\
torchcaps resume RUN [--optimiser.lr 1e-4] [--json]

  torchcaps resume runs/demo-capsnet-s0                      to the bits of a run that never stopped
  torchcaps resume runs/demo-capsnet-s0 --optimiser.lr 1e-4  after a loss that was not finite

Fields of optimiser and schedule can be replaced, which the run's record says, and those of the
machine: --data.root, --hardware.in-turn, --checkpoint-seconds, --tensorboard, --record."""

SHORT = {"--data-root": "--data.root", "--data": "--data.name", "--from": "--start-from"}
"""Options of `train` that need no group."""
DECIDED = tuple(f"--model.{n}" for n in ("image-size", "image-width", "in-channels", "num-classes"))
"""Fields that the data decides."""


def train(words: list[str]) -> None:
    """Train a recipe, or a model on one's own images; every field can be replaced."""
    if not words:
        raise wrong("name a recipe: torchcaps train demo/capsnet.", "torchcaps train")
    if words[0] in ("-h", "--help"):
        print(TRAIN)
        return
    if words[0].startswith("-"):
        raise wrong("the recipe comes first: torchcaps train RECIPE …", "torchcaps train")
    known = [_long(word) for word in words[1:]]
    for word in known:
        if word.partition("=")[0].replace("_", "-") in DECIDED:
            raise wrong(f"{word.partition('=')[0]}: the data decides that.", "torchcaps train")
    from torchcaps.data.registry import shared_loads

    with shared_loads():  # a model on one's own images looks at them first
        _train(words[0], known)


def _long(word: str) -> str:
    """An option by the name that it has among the fields: --data is --data.name."""
    return re.sub(r"^--[a-z-]+(?==|$)", lambda m: SHORT.get(m[0], m[0]), word)


def _train(name: str, words: list[str]) -> None:
    import tyro

    from torchcaps.train.recipe import Recipe

    chosen, rest, said = _chosen(name, words)

    if os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0" and not any(
        word.partition("=")[0] == "--out" for word in rest
    ):
        raise wrong("with --max-restarts say where: --out RUN.", "torchcaps train")

    def run(
        recipe: Annotated[Recipe, tyro.conf.arg(name="")] = chosen,
        out: Folder = None,
        json: bool = False,
    ) -> None:
        """Train a recipe; every field can be replaced. --task NAME and --model NAME exchange a
        whole group. Ctrl-C leaves a run that `resume` goes on with.

        Args:
            recipe: The run.
            out: The folder of the run; default: runs/<recipe>-s<seed>.
            json: Whether the record is printed as JSON at the end.
        """
        from torchcaps.experiments.chain import pretrained
        from torchcaps.train.loop import resume, start

        to = Console(stderr=True) if json else console
        if said:
            to.print(said(recipe), highlight=False, markup=False)
        if out is not None and _restarted(out, recipe):
            return show_record(resume(out, to), json)
        results = RESULTS if recipe.record else None
        show_record(start(pretrained(recipe, to, results), out, to), json)

    parse(run, rest, f"torchcaps train {name}")


def _restarted(out: Path, recipe: Any) -> bool:
    """Whether torchrun starts this once more because a process of it died: then its run goes on."""
    from torchcaps.train.recipe import differences
    from torchcaps.train.run import Run

    run = Run(out)
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" or not run.recipe_file.exists():
        return False
    held = run.recipe()
    return held.seed == recipe.seed and not differences(held, recipe)


def _chosen(name: str, words: list[str]) -> tuple[Any, list[str], Callable[[Any], str] | None]:
    """The recipe that a name stands for, with the task, the model and the file of fields that the
    words name; the other words; and, for a model on one's own images, what says how it trains.
    """
    from dataclasses import replace

    from torchcaps.experiments import get_recipe, recipes
    from torchcaps.models.registry import list_models, model_config
    from torchcaps.train.recipe import overlaid
    from torchcaps.train.tasks import task_config

    rest, asked = _without(words, ("--task", "--model", "--config"))
    said = None
    if name in recipes():
        printed = re.search(r"--protocol[= ]paper( |$)", " ".join(words))
        recipe = get_recipe(name, "paper" if printed else "ours")
    elif name in list_models():
        recipe, said = _own(name, rest)
    else:
        names = [*recipes(), *list_models()]
        near = nearest(name, names, most=0) or "See torchcaps list recipes."
        raise wrong(f"there is no recipe or model {name!r}. {near}", "torchcaps train")
    if "--config" in asked:
        recipe = overlaid(recipe, Path(asked["--config"]))
    if "--task" in asked:
        recipe = replace(recipe, task=task_config(asked["--task"])())
    if "--model" in asked:
        recipe = replace(recipe, model=model_config(asked["--model"]))
    return recipe, rest, said


def _without(words: list[str], options: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """Words without some options, and what these options say."""
    rest: list[str] = []
    asked: dict[str, str] = {}
    pending = list(words)
    while pending:
        word = pending.pop(0)
        option, equals, value = word.partition("=")
        if option not in options:
            rest.append(word)
            continue
        asked[option] = value if equals else (pending.pop(0) if pending else "")
    return rest, asked


def _own(name: str, words: list[str]) -> tuple[Any, Callable[[Any], str]]:
    """A recipe for a model and the data that the words name."""
    from torchcaps.experiments.own import own_recipe
    from torchcaps.train.load import data_of
    from torchcaps.train.recipe import DataSpec

    _, asked = _without(words, ("--data.name", "--data.root", "--data.seed"))
    data = asked.get("--data.name", "")
    if {"-h", "--help"} & set(words):
        data = data or "digits"
    if not data:
        raise wrong(f"name the data: torchcaps train {name} --data folder:PATH.", "torchcaps train")
    seed = asked.get("--data.seed", "0")
    spec = DataSpec(
        data, root=asked.get("--data.root", ""), seed=int(seed) if seed.isdecimal() else 0
    )
    return own_recipe(name, data_of(spec), spec)


def resume(words: list[str]) -> None:
    """Go on with a run that was stopped or killed; it ends with the bits of one that never was."""
    if words and words[0] not in ("-h", "--help") and not words[0].startswith("-"):
        return _resume(Path(words[0]), [_long(word) for word in words[1:]])
    print(RESUME)
    if not words or words[0].startswith("-") and words[0] not in ("-h", "--help"):
        raise wrong("name the run: torchcaps resume runs/demo-capsnet-s0.", "torchcaps resume")


def _resume(folder: Path, words: list[str]) -> None:
    import tyro

    from torchcaps.train.recipe import Recipe
    from torchcaps.train.run import Run

    held = Run.open(folder).recipe()

    def run(recipe: Annotated[Recipe, tyro.conf.arg(name="")] = held, json: bool = False) -> None:
        """Go on with a run; the fields of optimiser and schedule can be replaced, which its record
        says, and those of the machine.

        Args:
            recipe: The run.
            json: Whether the record is printed as JSON at the end.
        """
        from torchcaps.train.loop import resume as go_on

        to = Console(stderr=True) if json else console
        show_record(go_on(folder, to, recipe=recipe if words else None), json)

    parse(run, words, f"torchcaps resume {folder}")


def show_record(run: Any, json: bool) -> None:
    import torch.distributed as dist
    from rich.table import Table

    if dist.is_initialized() and dist.get_rank():  # of many processes, one speaks
        return
    record = run.record()
    if json:
        return print_json({"folder": str(run.folder), **record})
    table = Table("data", "split", "metric", "value")
    for r in record["results"]:
        table.add_row(r["data"], r["split"], r["metric"], f"{r['value']:.4f}")
    console.print(table)
    facts = f"{record['parameters']:,} parameters, {record['seconds']:.0f} s, run in"
    console.print(facts, str(run.folder))
    if run.recipe().record:
        say_beyond(run)


def demo(out: Folder = None) -> None:
    """Train a small CapsNet and a small ConvNet-Avg on embedded digits; a report on both.

    Args:
        out: The folder of the two runs; default: runs/demo, numbered if there is one.
    """
    from rich.table import Table

    from torchcaps.experiments.demo import CLEAN, TRANSFORMED, run_demo
    from torchcaps.explorer import write_report

    folder, number = out or Path("runs/demo"), 2
    while folder.exists():
        folder, number = folder.with_name(f"{(out or Path('demo')).name}-{number}"), number + 1
    runs = run_demo(folder, console)
    title = "Test accuracy on 500 digits"
    shown = Table("model", "parameters", "clean, %", "affine, %", title=title)
    for run in runs:
        record = run.record()
        accuracy = [r for r in record["results"] if r["metric"] == "accuracy"]
        values = {r["data"]: r["value"] for r in accuracy if r["split"] == "test"}
        shown.add_row(
            record["recipe"]["row"], f"{record['parameters']:,}",
            f"{100 * values[CLEAN]:.1f}", f"{100 * values[TRANSFORMED]:.1f}",
        )  # fmt: skip
    console.print(shown)
    console.print(f"report: {write_report([r.folder for r in runs], folder / 'report.html')}")
