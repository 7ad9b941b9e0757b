"""The command for data sets."""

from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from torchcaps.cli.console import console, print_json, say
from torchcaps.cli.parse import Folder, MaybeFile, Plugins, load_plugins
from torchcaps.errors import UsageError


def data(
    action: Annotated[Literal["get", "check", "show", "compare", "pack"], Positional],
    name: Annotated[str, Positional, arg(metavar="DATA")],
    other: Annotated[str, Positional, arg(metavar="OTHER", help_behavior_hint="")] = "",
    /,
    data_root: Folder = None,
    out: MaybeFile = None,
    force: bool = False,
    plugin: Plugins = (),
    json: bool = False,
) -> None:
    """Download, check, show or pack a data set, or compare two.

    `pack` writes images as Arrow shards for training sets beyond memory: of a folder, hf:USER/SET
    or webdataset:FOLDER, in their own sizes or with ,size=. It needs 'torchcaps[packed]'.

    Examples: torchcaps data show digits · torchcaps data get mnist · torchcaps data check cifar10 ·
    torchcaps data compare affnist affnist-like:mnist · torchcaps data pack photos,size=256 OUT

    Args:
        action: Download files, verify checksums, draw a contact sheet, compare ink or pack images.
        name: A data set, from `torchcaps list data`; for `pack` the source.
        other: The data set to compare with; for `pack` the folder to write.
        data_root: Folder of the data sets; default: the platform's cache folder.
        out: The PNG that `show` writes; default: <name>.png.
        force: Replace the PNG.
        plugin: Plug-ins: your own data sets.
        json: Print as JSON.
    """
    from torchcaps.data import load
    from torchcaps.data.registry import check
    from torchcaps.outputs import check_file

    load_plugins(plugin)
    if (action in ("compare", "pack")) != bool(other):
        raise UsageError(
            "torchcaps data compare takes two data sets, torchcaps data pack a source and a new "
            "folder, the other actions one data set."
        )
    if action == "pack":
        return _pack(name, other, json)
    if action == "compare":
        return _compare(load(name, data_root).test, load(other, data_root).test, json)
    sheet = out or Path(name.replace("/", "-").replace(":", "-").replace(",", "-") + ".png")
    if action == "show":
        check_file(sheet, force=force)
    checked = check(name, data_root) if action == "check" else None
    loaded = load(name, data_root)
    facts: dict[str, Any] = {"name": loaded.name}
    facts |= {"train": len(loaded.train), "val": len(loaded.val), "test": len(loaded.test)}
    facts |= {"image": list(loaded.image_shape), "classes": loaded.num_classes}
    facts |= {"note": loaded.note, "images": loaded.storage}
    if checked is not None:
        facts["checked"] = checked or "its contents (no file with a known checksum)"
    if action == "show":
        from torchcaps.analysis.contact_sheet import contact_sheet
        from torchcaps.analysis.matplotlib_figures import save_figure

        sheet.parent.mkdir(parents=True, exist_ok=True)
        save_figure(contact_sheet(loaded), sheet, dpi=140)
        facts["sheet"] = str(sheet)
    if json:
        return print_json(facts)
    console.print("  ".join(f"{k} {v}" for k, v in facts.items() if v != ""))


def _pack(source: str, out: str, json: bool) -> None:
    """Write a pack, with a progress bar on a terminal."""
    import sys

    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from torchcaps.data.sets.packed import pack_source

    columns = TextColumn("packed"), MofNCompleteColumn(), TimeElapsedColumn()
    hidden = json or not sys.stderr.isatty()
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task("packed", total=None)
        manifest = pack_source(source, out, lambda count: bar.advance(task, count))
    shards = manifest["shards"]
    facts = {
        "folder": out, "images": sum(s["images"] for s in shards), "shards": len(shards),
        "bytes": sum(s["bytes"] for s in shards), "size": manifest["size"],
        "coding": manifest["coding"], "broken": sum(s["broken"] for s in shards),
    }  # fmt: skip
    if json:
        return print_json(facts)
    size = "x".join(map(str, facts["size"])) if facts["size"] else "several sizes"
    left_out = f", {facts['broken']} broken ones left out" if facts["broken"] else ""
    say(
        f"wrote {out}: {facts['images']:,} images of {size}{left_out}, "
        f"{facts['bytes'] / 1e6:,.1f} MB in {len(shards)} shards. Train on it: --data packed:{out}"
        + ("" if facts["size"] else ",size=64")
    )


def _compare(one: Any, other: Any, json: bool) -> None:
    """Compare the distributions of the ink's bounding boxes in two data sets."""
    from torchcaps.data.ink import compare_ink

    numbers = compare_ink(one, other)
    if json:
        return print_json({k: {**c._asdict(), "alike": c.alike} for k, c in numbers.items()})
    for name, c in numbers.items():
        text = f"{name:7} mean {c.mean:7.3f} and {c.other:7.3f}  apart by {c.distance:.4f}"
        say(f"{text} (chance: {c.limit:.4f})  {'alike' if c.alike else 'NOT alike'}")
