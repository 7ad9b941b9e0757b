"""The command for data sets."""

from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from torchcaps.cli.console import console, print_json, say
from torchcaps.cli.parse import Folder, MaybeFile
from torchcaps.errors import UsageError


def data(
    action: Annotated[Literal["get", "check", "show", "compare"], Positional],
    name: Annotated[str, Positional, arg(metavar="DATA")],
    other: Annotated[str, Positional, arg(metavar="OTHER", help_behavior_hint="")] = "",
    /,
    data_root: Folder = None,
    out: MaybeFile = None,
    force: bool = False,
    json: bool = False,
) -> None:
    """Download, check or show a data set, or compare two.

    Examples: torchcaps data show digits · torchcaps data get mnist · torchcaps data check cifar10 ·
    torchcaps data compare affnist affnist-like:mnist

    Args:
        action: Download missing files, verify checksums, draw a contact sheet, or compare ink.
        name: A data set, from `torchcaps list data`.
        other: The data set to compare with.
        data_root: Folder of the data sets; default: the platform's cache folder.
        out: The PNG that `show` writes; default: <name>.png.
        force: Replace the PNG.
        json: Print as JSON.
    """
    from torchcaps.data import load
    from torchcaps.data.registry import check
    from torchcaps.outputs import check_file

    if (action == "compare") != bool(other):
        raise UsageError("torchcaps data compare takes two data sets, the other actions take one.")
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
    facts |= {"note": loaded.note}
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


def _compare(one: Any, other: Any, json: bool) -> None:
    """Compare the distributions of the ink's bounding boxes in two data sets."""
    from torchcaps.data.ink import compare_ink

    numbers = compare_ink(one, other)
    if json:
        return print_json({k: {**c._asdict(), "alike": c.alike} for k, c in numbers.items()})
    for name, c in numbers.items():
        text = f"{name:7} mean {c.mean:7.3f} and {c.other:7.3f}  apart by {c.distance:.4f}"
        say(f"{text} (chance: {c.limit:.4f})  {'alike' if c.alike else 'NOT alike'}")
