"""What can be listed and completed, kept in a file so that a list need not import torch.

python -m torchcaps.cli.catalog      writes it anew; `make docs` does, and a test compares
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("catalog.json")


def read() -> dict[str, Any]:
    return json.loads(FILE.read_text())


def _first_line(thing: Any) -> str:
    return (thing.__doc__ or "").strip().split("\n")[0]


def _fields(value: Any, prefix: str = "--") -> list[str]:
    found = []
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        name = prefix + field.name.replace("_", "-")
        found += _fields(inner, f"{name}.") if dataclasses.is_dataclass(inner) else [name]
    return found


def build() -> dict[str, Any]:
    """Names and summaries of everything that is registered, by kind."""
    from torchcaps.analysis.measures import measures
    from torchcaps.data.registry import entries
    from torchcaps.experiments import get_recipe, recipes
    from torchcaps.layers.routers import routers
    from torchcaps.models.registry import models
    from torchcaps.train.tasks import summaries

    made = {name: get_recipe(name) for name in recipes()}
    return {
        "models": {m.name: m.summary for m in models()},
        "data": {d.name: d.summary for d in entries()},
        "recipes": {name: _first_line(f) for name, f in recipes().items()},
        "tasks": summaries(),
        "routings": {name: _first_line(r) for name, r in routers().items()},
        "measures": {name: _first_line(m) for name, m in measures().items()},
        "papers": sorted({recipe.paper for recipe in made.values()} - {""}),
        "fields": list({f: None for recipe in made.values() for f in _fields(recipe)}),
    }


def text() -> str:
    return json.dumps(build(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
