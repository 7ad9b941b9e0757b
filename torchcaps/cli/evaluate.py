"""The command that evaluates trained models."""

from typing import Annotated, Any, Literal

from rich.table import Column, Table
from tyro.conf import arg

from torchcaps.cli.console import complain, console, print_json, say
from torchcaps.cli.parse import Data, Folder, Plugins, Runs, load_plugins
from torchcaps.errors import UsageError

MAX_CLASSES, MAX_MISTAKES, MAX_MATRIX = 10, 5, 12
"""Weakest classes and mistakes that are named, and classes whose whole matrix is printed."""
SHORT_NAME = 4
"""Letters of a class name that heads a column; longer names have a number there."""
Metrics = Annotated[tuple[str, ...], arg(metavar="METRIC", help_behavior_hint="")]


def eval_(
    runs: Runs,
    /,
    data: Data = "",
    split: Literal["auto", "test", "val", "train", "all"] = "auto",
    metrics: Metrics = (),
    record: bool = False,
    data_root: Folder = None,
    json: bool = False,
    plugin: Plugins = (),
) -> None:
    """Evaluate trained models on a data set, class by class, and compute metrics.

    Accuracy has a 95 % interval (Wilson) and stands beside baselines: the majority class, nearest
    class mean, softmax linear probe and MLP, on 16x16 pixels or features of the backbone. Classes
    are matched by their names. Of several runs: each, then mean, deviation and best of those with
    the same recipe. Some metrics need pip install 'torchcaps[analysis]'.

    Examples: torchcaps eval runs/demo-capsnet-s0 --data rotated:digits,degrees=30 ·
    torchcaps eval runs/demo-capsnet-s0 --metrics calibration linear:rotated:digits,degrees=30

    Args:
        runs: Folders of finished runs or saved models, pretrained models.
        data: A data set; default: the run's own.
        split: The split to evaluate; auto: test, or every image of new data without splits.
        metrics: Metrics, from `torchcaps list metrics`, each with its data set and options.
        record: Append the metrics to results/<paper>.jsonl.
        data_root: Folder of the data sets.
        json: Print as JSON.
        plugin: Plug-ins: your own models, data sets, metrics or figures.
    """
    load_plugins(plugin)
    from torchcaps.metrics.reference import Reference
    from torchcaps.training.evaluate import evaluate

    if not runs:
        raise UsageError("Name a run: torchcaps eval runs/demo-capsnet-s0.")
    sources = [str(run) for run in dict.fromkeys(runs)]
    reports = [evaluate(source, data, split=split, data_root=data_root) for source in sources]
    for source, result in zip(sources, reports, strict=True):
        if metrics:
            result["results"] = _metrics(source, metrics, data, data_root, record, json)
    if json:
        return print_json(reports[0] if len(reports) == 1 else reports)
    for result in reports:
        if note := result.get("note"):
            complain(note)
        numbers = "  ".join(_with_interval(k, v, result) for k, v in result["numbers"].items())
        prefix = f"{result['run']}: " if len(reports) > 1 else ""
        say(f"{prefix}{result['data']} {result['split']}, {result['n']:,} images: {numbers}")
        if known := result.get("reference"):
            _show_baselines(prefix, result["numbers"]["accuracy"], Reference.from_dict(known))
        for line in result.get("results", ()):
            say(f"{line['metric']:28} {line['value']:.4f}  {line['data']}")
    if len(reports) == 1:
        return _show_classes(reports[0])
    for recipe in dict.fromkeys(r["recipe"] for r in reports):
        _show_seeds(recipe, [r for r in reports if r["recipe"] == recipe])


def _with_interval(metric: str, value: float, result: dict[str, Any]) -> str:
    from torchcaps.metrics.reference import interval_text

    interval = result["intervals_95"].get(metric)
    return f"{metric} {value:.4f}" + (f" ({interval_text(*interval)})" if interval else "")


def _show_baselines(prefix: str, accuracy: float, known: Any) -> None:
    for line in known.lines():
        say(f"{prefix}baseline: {line}")
    say(f"{prefix}{known.verdict('This model', accuracy)}")


def _metrics(
    source: str, metrics: tuple[str, ...], data: str, data_root: Any, record: bool, json: bool
) -> list[dict[str, Any]]:
    """Lines of metrics; each is recorded at once, so that a later failure loses nothing."""
    from torchcaps.papers.records import RESULTS, append_record
    from torchcaps.training.evaluate import evaluate_metrics
    from torchcaps.training.progress import MetricProgress

    lines, messages = [], []
    with MetricProgress(None if json else console) as progress:
        for part in evaluate_metrics(source, metrics, data_root, progress=progress, data=data):
            lines += part["results"]
            if record:
                messages.append(append_record(part, RESULTS))
    for message in () if json else dict.fromkeys(messages):
        say(message)
    return lines


def _show_seeds(recipe: str, results: list[dict[str, Any]]) -> None:
    """Several runs of one recipe as a row: mean ± deviation, and the best."""
    from statistics import mean, stdev

    if len(results) < 2:
        return
    texts = []
    for metric in results[0]["numbers"]:
        values = [r["numbers"][metric] for r in results]
        best = min(values) if metric.endswith(("loss", "error", "sse")) else max(values)
        texts.append(f"{metric} {mean(values):.4f} ± {stdev(values):.4f}, best {best:.4f}")
    say(f"{recipe}, {len(results)} runs: {'  '.join(texts)}")


def _show_classes(result: dict[str, Any]) -> None:
    """The weakest classes, the confusion matrix, and the most confident mistakes."""
    if not result.get("classes"):
        return
    classes = [c for c in result["classes"] if c["n"]]
    weakest = sorted(classes, key=lambda c: c["accuracy"])[:MAX_CLASSES]
    text = "  ".join(f"{c['name']} {c['accuracy']:.1%} of {c['n']}" for c in weakest)
    say(f"{'weakest classes' if len(classes) > MAX_CLASSES else 'classes'}: {text}")
    names = [c["name"] for c in result["classes"]]
    matrix = result["confusion"]
    if len(names) <= MAX_MATRIX:
        heads, rows = names, names
        if max(map(len, names)) > SHORT_NAME:
            heads = [str(n + 1) for n in range(len(names))]
            rows = [f"{n} {name}" for n, name in enumerate(names, 1)]
        table = Table("true \\ predicted", *(Column(h, justify="right") for h in heads))
        for name, row in zip(rows, matrix, strict=True):
            table.add_row(name, *(str(n) if n else "·" for n in row))
        console.print(table)
    pairs = [
        (count, names[r], names[c])
        for r, row in enumerate(matrix)
        for c, count in enumerate(row)
        if r != c and count
    ]
    if pairs:
        pairs = sorted(pairs, reverse=True)[:MAX_MISTAKES]
        say("most frequent: " + "  ".join(f"{a} predicted as {b} {n}x" for n, a, b in pairs))
        worst = result["mistakes"][:MAX_MISTAKES]
        texts = (
            f"{m['label']} as {m['said']} {m['confidence']:.0%}"
            + (f" ({m['file']})" if m["file"] else "")
            for m in worst
        )
        say("most confident: " + "  ".join(texts))
