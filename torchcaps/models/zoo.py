"""Weights that come with torchcaps: a folder each under `torchcaps/zoo/`, in half precision."""

from pathlib import Path

from torchcaps.errors import Misused, nearest

PREFIX = "zoo:"
FOLDER = Path(__file__).parents[1] / "zoo"


def zoo_names() -> list[str]:
    """Names of the models whose weights are here: `torchcaps.load("zoo:NAME")`."""
    return sorted(p.parent.name for p in FOLDER.glob("*/model.safetensors"))


def zoo_folder(name: str) -> Path:
    """The folder of a model of the zoo, by its name with or without `zoo:`."""
    name = name.removeprefix(PREFIX)
    if name not in zoo_names():
        raise Misused(f"There is no model {name!r} in the zoo. {nearest(name, zoo_names())}")
    return FOLDER / name
