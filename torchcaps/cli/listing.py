"""Commands that list what there is: models, data sets and other names; versions; a model's walk."""

from fnmatch import fnmatch
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from torchcaps.cli.console import console, print_json, say
from torchcaps.cli.parse import Folder

KINDS = ("models", "data", "tasks", "routings", "metrics", "figures")
Kind = Literal["all", "models", "data", "tasks", "routings", "metrics", "figures"]


def list_(
    kind: Annotated[Kind, Positional] = "all",
    pattern: Annotated[str, Positional, arg(metavar="PATTERN", help_behavior_hint="")] = "*",
    /,
    pretrained: bool = False,
    every: bool = False,
    json: bool = False,
) -> None:
    """List models, data sets, tasks, routings, metrics and figures.

    Examples: torchcaps list models · torchcaps list models 'caps*' · torchcaps list --json

    Args:
        kind: Kind of names to list.
        pattern: Names to list, with * for any characters.
        pretrained: List the models that have pretrained weights.
        every: List variants of models, too, that fill a row of a paper's table.
        json: Print as JSON.
    """
    from torchcaps.cli.catalog import read

    catalog = read()
    if pretrained:
        catalog["models"] = catalog["pretrained"]
        kind = "models"
    elif not every:
        catalog["models"] = {n: catalog["models"][n] for n in catalog["listed"]}
    names = {
        k: {name: text for name, text in catalog[k].items() if fnmatch(name, pattern)}
        for k in KINDS
        if kind in ("all", k)
    }
    if json:
        return print_json(names)
    for title, lines in names.items():
        if kind == "all":
            console.print(f"\n{title}", style="bold")
        width = max(map(len, lines), default=0)
        for name, summary in lines.items():  # never cut: names are there to be copied
            say(f"{name:{width}}  {summary}")
    if not any(names.values()):
        say(f"Nothing matches {pattern!r}.")


def tour(
    model: Annotated[str, Positional, arg(metavar="MODEL")],
    data: Annotated[str, Positional, arg(metavar="DATA")] = "digits",
    /,
    data_root: Folder = None,
    json: bool = False,
) -> None:
    """Push one image through a model and print each step: file and line, what it is, its shape.

    Example: torchcaps tour capsnet digits

    Args:
        model: A model, from `torchcaps list models`.
        data: A data set, from `torchcaps list data`.
        data_root: Folder of the data sets.
        json: Print as JSON.
    """
    import textwrap
    from dataclasses import asdict

    from rich.text import Text

    from torchcaps.analysis.tour import tour as walk
    from torchcaps.data import load
    from torchcaps.models.registry import build, model_config
    from torchcaps.training.setup import sizes_of

    loaded = load(data, data_root)
    steps = walk(build(model_config(model, **sizes_of(loaded))), loaded)
    if json:
        return print_json([asdict(s) for s in steps])
    for number, step in enumerate(steps, 1):
        what = textwrap.fill(step.what, console.width - 5, subsequent_indent=" " * 4)
        console.print(Text(f"{number:2}", "bold"), what, sep="  ", highlight=False)
        shape = f"{list(step.shape)}  {step.letters}"
        console.print(Text(f"    {step.where}", "dim"), shape, sep="  ", highlight=False)


def version(json: bool = False) -> None:
    """Print the versions of torchcaps and its main dependencies.

    Args:
        json: Print as JSON.
    """
    from torchcaps import __version__
    from torchcaps.training.provenance import commit, versions

    numbers = {"torchcaps": __version__, "commit": commit(), **versions()}
    if json:
        return print_json(numbers)
    console.print("  ".join(f"{k} {v}" for k, v in numbers.items()))


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Positional], /) -> None:
    """Print a script that completes commands, recipes, models and their fields in a shell.

    Args:
        shell: The shell that reads the script.
    """
    from torchcaps.cli.commands import COMMANDS
    from torchcaps.cli.completion import completion_script

    print(completion_script(shell, list(COMMANDS)))
