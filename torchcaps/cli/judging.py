"""Commands that judge a finished run: eval and measure."""

import sys
from typing import Annotated, Any, Literal

from rich.markup import escape
from rich.table import Column, Table
from tyro.conf import Positional, arg

from torchcaps.cli.parse import Data, Folder, OneRun, Runs
from torchcaps.cli.saying import RESULTS, console, print_json
from torchcaps.errors import Misused

WEAKEST, OFTEN, MATRIX = 10, 5, 12
"""Classes and mistakes that are named, and classes whose whole matrix is printed."""
SHORT = 4
"""Letters of a class's name that heads a column; longer ones have a number there."""


def eval_(
    runs: Runs,
    /,
    data: Data = "",
    split: Literal["test", "val", "train", "all"] = "test",
    data_root: Folder = None,
    json: bool = False,
) -> None:
    """Evaluate the chosen model of a run on any data set of its image size, class by class.

    Classes are matched by their names. Of several runs: each, then mean, deviation and best of
    those that share a recipe.

    Example: torchcaps eval runs/demo-capsnet-s0 --data rotated:digits,degrees=30

    Args:
        runs: Folders of finished runs.
        data: A data set; default: the run's own.
        split: The split that is evaluated; all: every image of the set.
        data_root: The folder of the data sets.
        json: Whether the numbers are printed as JSON.
    """
    from torchcaps.train.evaluate import evaluate_run

    if not runs:
        raise Misused("Give the folder of a run.")
    found = [evaluate_run(run, data, split, data_root) for run in dict.fromkeys(runs)]
    if json:
        return print_json(found[0] if len(found) == 1 else found)
    for result in found:
        if note := result.get("note"):
            print(f"torchcaps: {note}", file=sys.stderr)
        numbers = "  ".join(f"{k} {v:.4f}" for k, v in result["numbers"].items())
        of = f"{result['run']}: " if len(found) > 1 else ""
        _say(f"{of}{result['data']} {split}, {result['n']:,} images: {numbers}")
    if len(found) == 1:
        return _show_classes(found[0])
    for recipe in dict.fromkeys(r["recipe"] for r in found):
        _show_seeds(recipe, [r for r in found if r["recipe"] == recipe])


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def _show_seeds(recipe: str, found: list[dict[str, Any]]) -> None:
    """Several runs of one recipe as a row: mean ± deviation, and the best."""
    from statistics import mean, stdev

    if len(found) < 2:
        return
    words = []
    for metric in found[0]["numbers"]:
        values = [r["numbers"][metric] for r in found]
        best = min(values) if metric.endswith(("loss", "error", "sse")) else max(values)
        words.append(f"{metric} {mean(values):.4f} ± {stdev(values):.4f}, best {best:.4f}")
    _say(f"{recipe}, {len(found)} runs: {'  '.join(words)}")


def _show_classes(result: dict[str, Any]) -> None:
    """The weakest classes, who is taken for whom, and what the model is sure of and wrong."""
    if not result.get("classes"):
        return
    known = [c for c in result["classes"] if c["n"]]
    weakest = sorted(known, key=lambda c: c["accuracy"])[:WEAKEST]
    said = "  ".join(f"{c['name']} {c['accuracy']:.1%} of {c['n']}" for c in weakest)
    _say(f"{'weakest classes' if len(known) > WEAKEST else 'classes'}: {said}")
    names = [c["name"] for c in result["classes"]]
    table = result["confusion"]
    if len(names) <= MATRIX:
        heads, rows = names, names
        if max(map(len, names)) > SHORT:  # too wide to stand side by side
            heads = [str(n + 1) for n in range(len(names))]
            rows = [f"{n} {name}" for n, name in enumerate(names, 1)]
        shown = Table("is \\ said", *(Column(escape(h), justify="right") for h in heads))
        for name, row in zip(rows, table, strict=True):
            shown.add_row(escape(name), *(str(n) if n else "·" for n in row))
        console.print(shown)
    pairs = [
        (count, names[r], names[c])
        for r, row in enumerate(table)
        for c, count in enumerate(row)
        if r != c and count
    ]
    often = sorted(pairs, reverse=True)[:OFTEN]
    if often:
        _say("most often: " + "  ".join(f"{a} taken for {b} {n}x" for n, a, b in often))
        worst = result["mistakes"][:OFTEN]
        surest = (f"{m['label']} called {m['said']} {m['confidence']:.0%}" for m in worst)
        _say("most sure and wrong: " + "  ".join(surest))


def measure(
    run: OneRun,
    measures: Annotated[tuple[str, ...], Positional, arg(metavar="MEASURE")] = ("compactness",),
    /,
    data_root: Folder = None,
    record: bool = False,
    json: bool = False,
) -> None:
    """Measure more of a finished run: what `torchcaps list measures` shows, on any data.

    Some need pip install 'torchcaps[analysis]'.

    Examples: torchcaps measure runs/demo-capsnet-s0 calibration linear:rotated:digits,degrees=30

    Args:
        run: The folder of a finished run.
        measures: Measures by name, each with a data set and options of its own where it needs them.
        data_root: The folder of the data sets.
        record: Whether the numbers are appended to results/<paper>.jsonl.
        json: Whether the numbers are printed as JSON.
    """
    from torchcaps.train.evaluate import measure_run
    from torchcaps.train.progress import MeasureProgress
    from torchcaps.train.results import append_record

    lines, said = [], []
    with MeasureProgress(None if json else console) as told:
        for taken in measure_run(run, list(measures), data_root, told=told):
            lines += taken["results"]
            if record:  # at once: what is costly is not lost with what comes after it
                said.append(append_record(taken, RESULTS))
            for r in taken["results"] if not json else ():
                console.print(f"{r['metric']:28} {r['value']:.4f}  {r['data']}")
    for sentence in dict.fromkeys(said):
        console.print(sentence)
    if json:
        print_json(lines)
