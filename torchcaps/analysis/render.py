"""Figures by name for runs and models: what `torchcaps plot` and `torchcaps.plot` do."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchcaps.analysis.matplotlib_figures import save_figure
from torchcaps.analysis.plots import Subject, get_plot
from torchcaps.models import Model
from torchcaps.models.hub import pretrained_folder
from torchcaps.outputs import check_file
from torchcaps.training.evaluate import run_data
from torchcaps.training.hardware import best_device
from torchcaps.training.load import data_of, load
from torchcaps.training.recipe import from_dict
from torchcaps.training.run import Run, by_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def subjects(
    sources: Sequence[Run | str | Path], root: str | Path | None = None
) -> list[tuple[str, Subject]]:
    """Subjects to plot: runs by their names, and pretrained models. -> (file stem, subject)"""
    pretrained, runs = [], []
    for source in sources:
        if isinstance(source, Run) or Path(source).exists():
            runs.append(source if isinstance(source, Run) else Run.open(source))
        else:
            pretrained.append(pretrained_folder(str(source)).name)
    named = by_name(runs).items()
    pairs = [(run.folder.name, _of_run(name, run, root)) for name, run in named]
    return pairs + [(name, _of_pretrained(name, root)) for name in pretrained]


def _of_run(name: str, run: Run, root: str | Path | None) -> Subject:
    device = best_device()
    model = cache(lambda: load(run.folder).to(device))
    return Subject(name, model, cache(lambda: run_data(run, root).to(device)), run.metrics)


def _of_pretrained(name: str, root: str | Path | None) -> Subject:
    device = best_device()

    @cache
    def model() -> Model:
        return load(name).to(device)

    def data() -> Any:
        recipe = from_dict((model().record or {})["recipe"])
        return data_of(recipe.data, root, label_seed=recipe.seed).to(device)

    return Subject(name, model, cache(data), [])


def render(
    name: str, sources: Sequence[Any], root: str | Path | None = None, **options: Any
) -> "dict[str, Figure]":
    """Figures by a suffix of their file's name; one figure for several models if it combines."""
    plot = get_plot(name, **options)
    arrays: dict[tuple[str, str], Any] = {}
    for stem, subject in subjects(sources, root):
        stem = f"{stem}-{len(arrays)}" if stem in (s for s, _ in arrays) else stem
        arrays[stem, subject.name] = plot.arrays(subject)
    if plot.combines or len(arrays) == 1:
        return plot.figures({subject: values for (_, subject), values in arrays.items()})
    return {
        "-".join(filter(None, (stem, suffix))): figure
        for (stem, subject), values in arrays.items()
        for suffix, figure in plot.figures({subject: values}).items()
    }


def save(figures: "dict[str, Figure]", out: Path, force: bool = False) -> list[Path]:
    """Save figures as files: `out`, with each figure's suffix in its name. -> the paths"""
    paths = [out.with_stem(f"{out.stem}-{suffix}") if suffix else out for suffix in figures]
    for path in paths:
        check_file(path, force=force)
    out.parent.mkdir(parents=True, exist_ok=True)
    for path, figure in zip(paths, figures.values(), strict=True):
        save_figure(figure, path, dpi=150, bbox_inches="tight")
    return paths
