"""Commands that show trained models: the explorer, reports and figures."""

from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from torchcaps.cli.console import console, say
from torchcaps.cli.parse import Data, Folder, MaybeFile, Plugins, Runs, load_plugins
from torchcaps.errors import UsageError


def explore(runs: Runs = (), /, port: int = 8117, open: bool = True, data: Data = "digits") -> None:
    """Open trained models in a browser: rotate an image, move a unit, follow the routing.

    Without arguments: the finished runs under runs/, newest first, and the models that come with
    torchcaps. Needs pip install 'torchcaps[explore]'.

    Example: torchcaps explore runs/demo/capsnet runs/demo/convnet-avg

    Args:
        runs: Folders of finished runs or saved models, pretrained models, hub ids.
        port: Port on this machine; if it is in use, the next free one.
        open: Open the browser.
        data: Images for saved models and models of the hub, which come without their own.
    """
    from torchcaps.explorer.serve import explore_models
    from torchcaps.papers.tables import cells_of_record

    explore_models(runs, port, open, data, console, cells_of_record)


def report(runs: Runs, /, out: MaybeFile = None, force: bool = False, plugin: Plugins = ()) -> None:
    """Write one HTML file about one run or several, with every figure in it.

    Example: torchcaps report runs/demo/capsnet runs/demo/convnet-avg --out report.html

    Args:
        runs: Folders of runs, finished or not.
        out: The page; default: report.html in the first run's folder, which is replaced.
        force: Replace the file of --out.
        plugin: Plug-ins: your own models, data sets, metrics or figures.
    """
    load_plugins(plugin)
    from torchcaps.api import report as write

    if not runs:
        raise UsageError("Name at least one run: torchcaps report runs/demo/capsnet.")
    say(f"wrote {write(runs, out=out, force=force)}")


def plot(
    name: Annotated[str, Positional, arg(metavar="FIGURE")],
    runs: Runs,
    /,
    out: MaybeFile = None,
    data_root: Folder = None,
    force: bool = False,
    plugin: Plugins = (),
) -> None:
    """Draw one figure of one run or several.

    Examples: torchcaps plot traversal,image=3,units=4 runs/demo/capsnet ·
    torchcaps plot curves runs/demo/capsnet runs/demo/convnet-avg ·
    torchcaps plot samples,count=8 generative-one-small.digits · torchcaps list figures

    Args:
        name: A figure, from `torchcaps list figures`, with its options after commas.
        runs: Folders of runs, or pretrained models.
        out: The file, .png, .svg or .pdf; default: FIGURE.png. Several figures add to its name.
        data_root: Folder of the data sets.
        force: Replace files.
        plugin: Plug-ins: your own models, data sets, metrics or figures.
    """
    load_plugins(plugin)
    from torchcaps.analysis.plots import get_plot
    from torchcaps.analysis.render import render, save
    from torchcaps.data.spec import call, parse
    from torchcaps.outputs import check_file

    if not runs:
        raise UsageError(f"Name at least one run: torchcaps plot {name} runs/demo/capsnet.")
    figure, argument, texts = parse(name)
    if argument is not None:
        raise UsageError(f"FIGURE: give {figure}, with options after commas.")
    kind = type(get_plot(figure))
    options: dict[str, Any] = {}
    if texts:
        get_plot(figure, **texts)  # raises for an unknown option
        options = vars(call(kind, name))
    file = check_file(out or Path(f"{figure}.png"), force=force)
    figures = render(figure, [str(run) for run in runs], data_root, **options)
    for path in save(figures, file, force):
        say(f"wrote {path}")
