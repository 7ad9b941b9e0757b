"""Commands for the folder of runs."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from torchcaps.cli.console import console, print_json, say
from torchcaps.cli.parse import Runs
from torchcaps.errors import TorchcapsError


def list_(
    folder: Annotated[Path, Positional, arg(metavar="FOLDER", help_behavior_hint="")] = Path(
        "runs"
    ),
    /,
    json: bool = False,
) -> None:
    """List runs with their accuracy, data, date and size.

    Args:
        folder: Folder of the runs; default: runs.
        json: Print as JSON.
    """
    from rich.table import Table

    from torchcaps.training.run import Run

    rows = [_row(run) for run in Run.list(folder)]
    if json:
        return print_json(rows)
    if not rows:
        return say(f"No runs in {folder}/. Train one: torchcaps train demo/capsnet")
    table = Table("run", "status", "name", "accuracy", "data", "started", "MB", box=None)
    table.columns[0].overflow = table.columns[4].overflow = "fold"  # never cut: to be copied
    for row in rows:
        accuracy = "" if row["accuracy"] is None else f"{row['accuracy']:.4f}"
        started = row["started"][:16].replace("T", " ")
        cells = (row["run"], row["status"], row["name"], accuracy, row["data"], started)
        table.add_row(*cells, f"{row['bytes'] / 1e6:.1f}")
    console.print(table)


def _row(run: Any) -> dict[str, Any]:
    row = {"run": str(run.folder), "bytes": _size(run.folder), "accuracy": None}
    started = datetime.fromtimestamp(run.recipe_file.stat().st_mtime).isoformat("T", "minutes")
    try:
        recipe, start = run.recipe(), run.start()
        row |= {"status": run.status, "name": run.name, "data": recipe.data.name}
        row |= {"accuracy": run.accuracy, "started": start.get("date", started)}
    except TorchcapsError as error:
        row |= {"status": "damaged", "name": str(error), "data": "", "started": started}
    return row


def _size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def clean(runs: Runs = (), /, dry: bool = False) -> None:
    """Remove checkpoints and caches that finished runs do not need.

    The model, the record, the metrics and the last weights stay: load, eval, report and fine-tuning
    work as before. Runs in progress are left alone.

    Args:
        runs: Folders of runs; default: all in runs/.
        dry: Print what would be removed.
    """
    import shutil

    from torchcaps.training import checkpoint
    from torchcaps.training.run import Run

    total = 0
    for run in [Run.open(folder) for folder in runs] if runs else Run.list():
        if run.status != "finished":
            continue
        before = _size(run.folder)
        if dry:
            freed = checkpoint.training_bytes(run.checkpoints) + _size(run.encodings)
        else:
            checkpoint.drop_training_state(run.checkpoints)
            shutil.rmtree(run.encodings, ignore_errors=True)
            freed = before - _size(run.folder)
        total += freed
        if freed > 0:
            say(f"{run.folder}: {freed / 1e6:.1f} MB")
    say(f"{'Would free' if dry else 'Freed'} {total / 1e6:.1f} MB.")
