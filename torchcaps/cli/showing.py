"""Commands that show: lists, reports, figures, tours, data sets, versions."""

from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from torchcaps.cli.parse import File, Folder, MaybeFile, OneRun, Runs
from torchcaps.cli.saying import console, print_json
from torchcaps.errors import Misused, TorchcapsError

MOST = 1000
"""Images that `sample` draws."""
LISTED = ("models", "data", "recipes", "tasks", "routings", "measures")
Kind = Literal["all", "models", "data", "recipes", "tasks", "routings", "measures", "runs"]


def _run_line(run: Any) -> str:
    try:
        return f"{run.status}, {run.name}"
    except TorchcapsError as error:
        return str(error)


def list_(kind: Annotated[Kind, Positional] = "all", /, json: bool = False) -> None:
    """Models, data sets, recipes, tasks, routings and measures, a line each; or one's runs.

    Examples: torchcaps list · torchcaps list recipes · torchcaps list runs · torchcaps list --json

    Args:
        kind: What is listed.
        json: Whether the list is printed as JSON.
    """
    from torchcaps.cli.catalog import read

    if kind == "runs":
        from torchcaps.train.run import Run

        found = {"runs": {str(run.folder): _run_line(run) for run in Run.list()}}
    else:
        known = read()
        found = {k: known[k] for k in LISTED if kind in ("all", k)}
    if json:
        return print_json(found)
    for title, lines in found.items():
        if kind == "all":
            console.print(f"\n[bold]{title}[/bold]")
        width = max(map(len, lines), default=0)
        for name, summary in lines.items():
            # never cut, whatever the width: names are there to be copied
            console.print(
                f"{name:{width}}  {summary}", soft_wrap=True, highlight=False, markup=False
            )


def report(runs: Runs, /, out: MaybeFile = None) -> None:
    """One HTML file about one run or several side by side, with every figure in it.

    Example: torchcaps report runs/demo/capsnet runs/demo/convnet-avg --out report.html

    Args:
        runs: Folders of runs, finished or not.
        out: The page; default: report.html in the first run's folder.
    """
    from torchcaps.explorer import write_report

    if not runs:
        raise Misused("Name at least one run: torchcaps report runs/demo/capsnet.")
    written = write_report(list(runs), out)
    console.print(f"wrote {written}", soft_wrap=True, markup=False)


def traverse(
    runs: Runs,
    /,
    image: int = 0,
    units: int = 4,
    out: File = Path("traverse.png"),
    data_root: Folder = None,
) -> None:
    """Draw what single units of the class capsule do: perturb one, decode (robustness, Figure 4).

    Squashed units move by 0.05 within 0.2, others by 2 within 8, as in the paper.

    Example: torchcaps traverse runs/robustness-table5-capsnet-s0 --out figure4.png

    Args:
        runs: Finished runs of models with a decoder, drawn side by side.
        image: The number of the test image.
        units: How many units are drawn, the first ones.
        out: The figure.
        data_root: The folder of the data sets.
    """
    from torchcaps.analysis.drawing import draw_traversals, value_range
    from torchcaps.analysis.drawing import traverse as move
    from torchcaps.analysis.figure import save_figure
    from torchcaps.train.load import data_of, load
    from torchcaps.train.run import by_name

    if not runs:
        raise Misused("Name at least one run: torchcaps traverse runs/demo/capsnet.")
    if units < 1:
        raise Misused("--units is at least 1.")
    drawn = {}
    for name, run in by_name(runs).items():
        model, test = load(run.folder), data_of(run.recipe().data, data_root).test
        if not 0 <= image < len(test):
            raise Misused(f"There is no test image {image}: they are 0 to {len(test) - 1}.")
        batch = test.batch(slice(image, image + 1))
        values = value_range(model, batch.images[0])
        label = int(batch.labels.reshape(-1)[0])
        drawn[name] = move(model, batch.images[0], values=values, label=label)[:units], values
    out.parent.mkdir(parents=True, exist_ok=True)
    save_figure(draw_traversals(drawn), out, dpi=150)
    console.print(f"wrote {out}", soft_wrap=True, markup=False)


def draw(
    view: Annotated[str, Positional, arg(metavar="VIEW")],
    runs: Runs,
    /,
    out: MaybeFile = None,
    data_root: Folder = None,
) -> None:
    """Draw one figure of a report for runs: support by rank, ranks, parts, routing, mistakes …

    Examples: torchcaps draw turned zoo:generative · torchcaps draw support runs/sparse-s0

    Args:
        view: The figure, by its name in a report's folder.
        runs: Folders of runs, or zoo:NAME, in one figure where the view takes several.
        out: The file; default: VIEW.png. Each run that has a figure of its own adds its name.
        data_root: The folder of the data sets.
    """
    import torchcaps.analysis  # noqa: F401  registers the views
    from torchcaps.analysis.figure import save_figure
    from torchcaps.analysis.views import get_view
    from torchcaps.models.zoo import PREFIX
    from torchcaps.train.load import data_of, load
    from torchcaps.train.recipe import from_dict
    from torchcaps.train.record import best_device
    from torchcaps.train.run import by_name

    chosen, device = get_view(view), best_device()
    if not runs:
        raise Misused(f"Name at least one run: torchcaps draw {view} runs/demo/capsnet.")
    kept = [str(name) for name in runs if str(name).startswith(PREFIX)]
    own = by_name(name for name in runs if str(name) not in kept)
    found = {}
    for name, source in {**{n: r.folder for n, r in own.items()}, **{n: n for n in kept}}.items():
        model = load(source).to(device)
        recipe = own[name].recipe() if name in own else from_dict((model.record or {})["recipe"])
        data = data_of(recipe.data, data_root, draw=recipe.seed).to(device)
        if reason := chosen.applies(model, data):
            raise TorchcapsError(f"{source}: there is no {view} to see. {reason}")
        stem = str(source).replace(PREFIX, "zoo-") if name in kept else Path(source).name
        stem = f"{stem}-{len(found)}" if stem in (s for s, _ in found) else stem
        found[stem, name] = chosen.compute(model, data)
    out = out or Path(f"{view}.png")
    out.parent.mkdir(parents=True, exist_ok=True)
    figures = {out: {name: arrays for (_, name), arrays in found.items()}}
    if not chosen.together and len(found) > 1:
        figures = {
            out.with_stem(f"{out.stem}-{folder}"): {name: arrays}
            for (folder, name), arrays in found.items()
        }
    for path, arrays in figures.items():
        save_figure(chosen.draw(arrays), path, dpi=150, bbox_inches="tight")
        console.print(f"wrote {path}", soft_wrap=True, markup=False)


def sample(run: OneRun, /, count: int = 16, seed: int = 0, out: File = Path("sample.png")) -> None:
    """Draw images that a generative model makes up, and their parts in the colours of objects.

    Example: torchcaps sample runs/generative-table1-capsules-s0 --count 32

    Args:
        run: The folder of a run of a generative model.
        count: How many images are drawn.
        seed: The seed of what is drawn.
        out: The figure.
    """
    from torchcaps.analysis.figure import save_figure
    from torchcaps.analysis.parts import draw_samples
    from torchcaps.models.prior import sample as draw
    from torchcaps.train.load import load

    model: Any = load(run)
    if "sample" not in model.provides:
        raise TorchcapsError(
            f"{run} holds a model of {model.config.family}, which makes up no images."
        )
    if not 1 <= count <= MOST:
        raise Misused(f"--count lies between 1 and {MOST:,}.")
    out.parent.mkdir(parents=True, exist_ok=True)
    save_figure(draw_samples(model, draw(model, count, seed)), out, dpi=150)
    console.print(f"wrote {out}", soft_wrap=True, markup=False)


def curves(runs: Runs, /, out: File = Path("curves.png")) -> None:
    """Draw losses and validation accuracy of runs against epochs, finished or not (mcae, Figure 6).

    Example: torchcaps curves runs/mcae-table1-imagenette-s0 runs/mcae-table1-imagenette-scratch-s0

    Args:
        runs: Folders of runs, drawn into one figure.
        out: The figure; further ones are called after what they show.
    """
    from torchcaps.analysis.curves import draw_curves
    from torchcaps.analysis.figure import save_figure
    from torchcaps.train.run import by_name

    found = {name: run.metrics() for name, run in by_name(runs).items()}
    if not any(found.values()):
        raise TorchcapsError("Name at least one run that has ended an epoch.")
    out.parent.mkdir(parents=True, exist_ok=True)
    for kind, figure in draw_curves(found).items():
        path = out if kind == "loss" else out.with_stem(f"{out.stem}-{kind}")
        save_figure(figure, path, dpi=150)
        console.print(f"wrote {path}", soft_wrap=True, markup=False)


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
        data_root: The folder of the data sets.
        json: Whether the steps are printed as JSON.
    """
    import textwrap
    from dataclasses import asdict

    from rich.markup import escape

    from torchcaps.analysis.tour import tour as walk
    from torchcaps.data import load as load_data
    from torchcaps.models import create_model
    from torchcaps.models.base import SIZES

    loaded = load_data(data, data_root)
    channels, height, width = loaded.image_shape
    sizes = (channels, height, width if width != height else 0, max(1, loaded.num_classes))
    made = create_model(model, **dict(zip(SIZES, sizes, strict=True)))
    steps = walk(made, loaded)
    if json:
        return print_json([asdict(s) for s in steps])
    for number, step in enumerate(steps, 1):
        what = textwrap.fill(step.what, console.width - 5, subsequent_indent=" " * 4)
        console.print(f"[bold]{number:2}[/bold]  {escape(what)}", highlight=False)
        shape = f"{list(step.shape)}  {step.letters}"
        console.print(f"    [dim]{step.where}[/dim]  {escape(shape)}", highlight=False)


def data(
    action: Annotated[Literal["get", "check", "show", "compare"], Positional],
    name: Annotated[str, Positional, arg(metavar="DATA")],
    other: Annotated[str, Positional, arg(metavar="DATA", help_behavior_hint="")] = "",
    /,
    data_root: Folder = None,
    out: MaybeFile = None,
    json: bool = False,
) -> None:
    """Fetch a data set, check its files, draw a contact sheet of it, or compare it with another.

    Examples: torchcaps data show digits · torchcaps data get mnist · torchcaps data check cifar10 ·
    torchcaps data compare affnist affnist-like:mnist

    Args:
        action: Whether it fetches what is missing, checks it all, draws a sheet or compares ink.
        name: A data set, from `torchcaps list data`.
        other: The data set beside it, for compare.
        data_root: The folder of the data sets; default: the platform's cache folder.
        out: The PNG that `show` writes; default: <name>.png.
        json: Whether the facts are printed as JSON.
    """
    from torchcaps.data import load as load_data
    from torchcaps.data.registry import check

    if (action == "compare") != bool(other):
        raise Misused("torchcaps data compare takes two data sets, the others take one.")
    if action == "compare":
        return _compare(load_data(name, data_root).test, load_data(other, data_root).test, json)
    checked = check(name, data_root) if action == "check" else None
    loaded = load_data(name, data_root)
    facts: dict[str, Any] = {"name": loaded.name}
    facts |= {"train": len(loaded.train), "val": len(loaded.val), "test": len(loaded.test)}
    facts |= {"image": list(loaded.image_shape), "classes": loaded.num_classes}
    facts |= {"note": loaded.note}
    if checked is not None:
        facts["checked"] = checked or "its contents (nothing that mirrors serve as it is)"
    if action == "show":
        from torchcaps.analysis.contact import contact_sheet
        from torchcaps.analysis.figure import save_figure

        path = out or Path(name.replace("/", "-").replace(":", "-").replace(",", "-") + ".png")
        save_figure(contact_sheet(loaded), path, dpi=140)
        facts["sheet"] = str(path)
    if json:
        return print_json(facts)
    console.print("  ".join(f"{k} {v}" for k, v in facts.items() if v != ""))


def _compare(one: Any, other: Any, json: bool) -> None:
    """Say of every number of the ink's boxes whether two sets have it alike."""
    from torchcaps.data.ink import compare_ink

    found = compare_ink(one, other)
    if json:
        return print_json({k: {**c._asdict(), "alike": c.alike} for k, c in found.items()})
    for name, c in found.items():
        said = "alike" if c.alike else "NOT alike"
        text = f"{name:7} mean {c.mean:7.3f} and {c.other:7.3f}  apart by {c.distance:.4f}"
        console.print(f"{text} (chance: {c.limit:.4f})  {said}", highlight=False, markup=False)


def version(json: bool = False) -> None:
    """Versions of torchcaps and of what it stands on.

    Args:
        json: Whether the versions are printed as JSON.
    """
    from torchcaps import __version__
    from torchcaps.train.record import commit, versions

    found = {"torchcaps": __version__, "commit": commit(), **versions()}
    if json:
        return print_json(found)
    console.print("  ".join(f"{k} {v}" for k, v in found.items()))


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Positional], /) -> None:
    """A script for the shell that completes commands, recipes, models and their fields.

    Args:
        shell: The shell that reads it.
    """
    from torchcaps.cli.commands import COMMANDS
    from torchcaps.cli.completion import completion_script

    print(completion_script(shell, list(COMMANDS)))
