"""Commands that show: lists, tables, reports, tours, data sets, versions."""

import json as json_module
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table as RichTable
from tyro.conf import Positional

from torchcaps import __version__
from torchcaps.data.registry import entries
from torchcaps.errors import TorchcapsError
from torchcaps.experiments import recipes
from torchcaps.models.registry import models

console = Console()


def print_json(value: Any) -> None:
    print(json_module.dumps(value, indent=2))


def list_(
    kind: Positional[Literal["all", "models", "data", "recipes"]] = "all", /, json: bool = False
) -> None:
    """Models, data sets and recipes, a line each.

    Examples: torchcaps list · torchcaps list recipes · torchcaps list --json
    """
    found = {
        "models": {m.name: m.summary for m in models()},
        "data": {d.name: d.summary for d in entries()},
        "recipes": {n: (f.__doc__ or "").strip().split("\n")[0] for n, f in recipes().items()},
    }
    chosen = {k: v for k, v in found.items() if kind in ("all", k)}
    if json:
        return print_json(chosen)
    for title, lines in chosen.items():
        table = RichTable(title=title, title_justify="left", box=None, show_header=False)
        for name, summary in lines.items():
            table.add_row(f"[bold]{name}[/bold]", summary)
        console.print(table)


def report(runs: Positional[tuple[Path, ...]], /, out: Path | None = None) -> None:
    """One HTML file about one run or several side by side, with every figure in it.

    Example: torchcaps report runs/demo/capsnet runs/demo/convnet-avg --out report.html
    """
    from torchcaps.explorer import write_report

    if not runs:
        raise TorchcapsError("Name at least one run: torchcaps report runs/demo/capsnet.")
    console.print(f"wrote {write_report(list(runs), out)}")


def traverse(
    runs: Positional[tuple[Path, ...]],
    /,
    image: int = 0,
    units: int = 4,
    out: Path = Path("traverse.png"),
    data_root: Path | None = None,
) -> None:
    """Draw what single units of the class capsule do: perturb one, decode (robustness, Figure 4).

    Squashed units move by 0.05 within 0.2, others by 2 within 8, as in the paper.

    Example: torchcaps traverse runs/robustness-table5-capsnet-s0 --out figure4.png

    Args:
        runs: Finished runs of models with a decoder, drawn side by side.
        image: Number of the test image.
        units: How many units, the first ones.
        out: The figure.
        data_root: Folder of the data sets.
    """
    from torchcaps.analysis.traverse import draw_traversals, traverse_run
    from torchcaps.train.run import by_name

    if not runs:
        raise TorchcapsError("Name at least one run: torchcaps traverse runs/demo/capsnet.")
    drawn = {
        name: traverse_run(run.folder, image, units, data_root)
        for name, run in by_name(runs).items()
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    draw_traversals(drawn).savefig(out, dpi=150)
    console.print(f"wrote {out}")


def curves(runs: Positional[tuple[Path, ...]], /, out: Path = Path("curves.png")) -> None:
    """Draw loss and validation accuracy of runs against epochs, finished or not (mcae, Figure 6).

    Example: torchcaps curves runs/mcae-table1-imagenette-s0 runs/mcae-table1-imagenette-scratch-s0

    Args:
        runs: Folders of runs, drawn into one figure.
        out: The figure.
    """
    from torchcaps.analysis import draw_curves
    from torchcaps.train.run import by_name

    found = by_name(runs)
    if not any(run.metrics() for run in found.values()):
        raise TorchcapsError("Name at least one run that has ended an epoch.")
    out.parent.mkdir(parents=True, exist_ok=True)
    draw_curves(found).savefig(out, dpi=150)
    console.print(f"wrote {out}")


def tour(
    model: Positional[str],
    data: Positional[str] = "digits",
    /,
    data_root: Path | None = None,
    json: bool = False,
) -> None:
    """Push one image through a model and print each step: file and line, what it is, its shape.

    Example: torchcaps tour capsnet digits
    """
    from torchcaps.analysis.tour import tour as walk
    from torchcaps.data import load as load_data
    from torchcaps.models import create_model

    loaded = load_data(data, data_root)
    channels, size, _ = loaded.image_shape
    made = create_model(
        model, in_channels=channels, image_size=size, num_classes=loaded.num_classes
    )
    steps = walk(made, loaded)
    if json:
        return print_json([asdict(s) for s in steps])
    shown = RichTable(box=None)
    shown.add_column("where", no_wrap=True)
    shown.add_column("what", ratio=1)
    shown.add_column("shape", no_wrap=True)
    shown.add_column("letters", no_wrap=True)
    for s in steps:
        shown.add_row(s.where, s.what, str(list(s.shape)), s.letters)
    console.print(shown)


def data(
    action: Positional[Literal["get", "check", "show"]],
    name: Positional[str],
    /,
    data_root: Path | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Fetch a data set, check its files, or draw a contact sheet of it.

    Examples: torchcaps data show digits · torchcaps data get mnist · torchcaps data check cifar10

    Args:
        action: get: download what is missing; check: read it all and verify; show: draw a sheet.
        name: A data set, from `torchcaps list data`.
        data_root: Folder of the data sets; default: the platform's cache folder.
        out: The PNG that `show` writes; default: <name>.png.
        json: Print JSON.
    """
    from torchcaps.data import load as load_data
    from torchcaps.data.registry import check

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

        path = out or Path(name.replace("/", "-").replace(":", "-").replace(",", "-") + ".png")
        contact_sheet(loaded).savefig(path, dpi=140)
        facts["sheet"] = str(path)
    if json:
        return print_json(facts)
    console.print("  ".join(f"{k} {v}" for k, v in facts.items() if v != ""))


def version(json: bool = False) -> None:
    """Versions of torchcaps and of what it stands on."""
    from torchcaps.train.record import commit, versions

    found = {"torchcaps": __version__, "commit": commit(), **versions()}
    if json:
        return print_json(found)
    console.print("  ".join(f"{k} {v}" for k, v in found.items()))
