"""The same heads on other sets, as in `fruits`: toys from novel viewpoints, and photographs.

`toys` trains and tests on one image of each stereo pair of smallNORB, on viewpoints that training
never saw. `photographs` has Imagenette and Imagewoof, whose classes the backbone knows from its own
training, so it is a check that heads work and no more.
"""

from typing import Any

from torchcaps.models.registry import model_config
from torchcaps.papers.tables import Column, Table, add_table
from torchcaps.papers.viewpoints.fruits import HEADS, head_name, head_recipe, metrics_for
from torchcaps.training.recipe import DataSpec
from torchcaps.training.registry import add_recipe

TABLES: dict[str, tuple[str, dict[str, str]]] = {
    "toys": (
        "smallNORB from novel viewpoints",
        {
            "novel azimuth": "smallnorb-azimuth,eye=0",
            "novel elevation": "smallnorb-elevation,eye=0",
        },
    ),
    "photographs": (
        "Photographs of 64 px, enlarged",
        {"Imagenette": "imagenette,size=224", "Imagewoof": "imagewoof,size=224"},
    ),
}
"""Table: title, and data set of each column."""


def _add(table: str, title: str, sets: dict[str, str]) -> None:
    columns: dict[str, Column] = {name: Column((data,)) for name, data in sets.items()}
    columns |= {f"ECE, {n}": Column((data,), "ece", lower=True) for n, data in sets.items()}
    heading = f"{title}, frozen EfficientNet-Lite0"
    add_table(Table("viewpoints", table, heading, columns, {row: {} for row in HEADS}))
    for row, (model, fields) in HEADS.items():
        for column, data in sets.items():
            scored = {n: c for n, c in columns.items() if data in c.data}
            config: Any = model_config(model, weights="auto", **fields)
            recipe = head_recipe(table, row, DataSpec(name=data), config, metrics_for(scored)[1:])
            short = column.lower().removeprefix("novel ")
            name = f"viewpoints/{table}/{head_name(row)}-{short}"
            add_recipe(name, f"{row} on {column}, frozen features.", recipe)


for table, (title, sets) in TABLES.items():
    _add(table, title, sets)
