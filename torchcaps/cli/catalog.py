"""Names to list and complete, kept in a file so that a list need not import torch.

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
    names = []
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        name = prefix + field.name.replace("_", "-")
        names += _fields(inner, f"{name}.") if dataclasses.is_dataclass(inner) else [name]
    return names


def build() -> dict[str, Any]:
    """Names and summaries of everything that is registered, by kind."""
    from torchcaps.analysis.plots import PLOTS
    from torchcaps.data.registry import entries
    from torchcaps.layers.routers import ROUTERS
    from torchcaps.metrics.base import METRICS
    from torchcaps.models.hub import pretrained_names
    from torchcaps.models.registry import MODELS, models
    from torchcaps.training.registry import get_recipe, recipes
    from torchcaps.training.tasks import summaries

    all_recipes = {name: get_recipe(name) for name in recipes()}
    return {
        "models": {m.name: m.summary for m in models()},
        "listed": [m.name for m in models() if m.listed],
        "pretrained": {n: MODELS[n.partition(".")[0]].summary for n in pretrained_names()},
        "data": {d.name: d.summary for d in entries()},
        "recipes": {name: _first_line(f) for name, f in recipes().items()},
        "tasks": summaries(),
        "routings": {name: _first_line(r) for name, r in sorted(ROUTERS.items())},
        "metrics": {name: _first_line(m) for name, m in sorted(METRICS.items())},
        "figures": {name: plot.title for name, plot in sorted(PLOTS.items())},
        "papers": sorted({recipe.paper for recipe in all_recipes.values()} - {""}),
        "fields": list({f: None for recipe in all_recipes.values() for f in _fields(recipe)}),
    }


def text() -> str:
    return json.dumps(build(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
