"""Fruits on two axes: heads on the frozen features of EfficientNet-Lite0. Not a paper's table.

Every head trains for 400 steps of 64 photographs of the first half of a turn, with one optimizer
and rate, and is tested on the other half and on a turn about another axis. `copies` adds three
rotated copies of each photograph, `gray` has gray photographs, `few` three photographs of a class,
and `unseen` leaves every fourth fruit out of training and asks for doubt about it.
"""

from typing import Any

from torchcaps.metrics.base import metric_of
from torchcaps.models.registry import model_config
from torchcaps.papers.tables import Column, Table, add_table
from torchcaps.training.recipe import DataSpec, OptimizerSpec, Recipe, ScheduleSpec
from torchcaps.training.registry import add_recipe
from torchcaps.training.tasks import Classify

HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("linear-head", {}),
    "MLP": ("mlp-head", {}),
    "vote": ("vote-head", {}),
    "capsules, uniform": ("capsule-head", {"routing": "uniform"}),
    "capsules, self": ("capsule-head", {"routing": "self"}),
    "capsules, dynamic": ("capsule-head", {"routing": "dynamic"}),
    "capsules, inverted": ("capsule-head", {"routing": "inverted"}),
    "capsules, EM": ("capsule-head", {"routing": "em"}),
}
SETTINGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "table1": ("all training photographs", "", {}),
    "copies": ("with three rotated copies", "", {"augment": ("rotate:180",), "copies": 3}),
    "gray": ("gray photographs", ",mode=L", {}),
    "few": ("three photographs of a class", "", {"per_class": 3}),
    "unseen": ("without every fourth fruit", ",classes=seen", {}),
}
OPTIMIZER = OptimizerSpec(kind="adamw", lr=4e-3, weight_decay=0.01)


def _data(test: str, options: str) -> str:
    return f"fruits-views:{test},size=224{options}"


def _columns(table: str, options: str) -> dict[str, Column]:
    half, axis = (_data(test, options) for test in ("half", "axis"))
    columns = {"other half": Column((half,)), "novel axis": Column((axis,))}
    if table == "unseen":
        return columns | {
            "AUROC, other half": Column((half,), "unseen_confidence"),
            "AUROC, novel axis": Column((axis,), "unseen_confidence"),
        }
    return columns | {
        "other half, rotated": Column((half + ",rotated=180",)),
        "novel axis, rotated": Column((axis + ",rotated=180",)),
        "ECE, other half": Column((half,), "ece", lower=True),
        "ECE, novel axis": Column((axis,), "ece", lower=True),
    }


def metrics_for(columns: dict[str, Column]) -> tuple[str, ...]:
    """The metrics that fill columns, each on its data."""
    asked = [(metric_of(c.metric), c.data[0]) for c in columns.values()]
    return tuple(f"{metric}:{data}" for metric, data in dict.fromkeys(asked))


def head_name(row: str) -> str:
    """A row's part of a recipe's name."""
    return row.lower().replace("capsules, ", "capsules-")


def head_recipe(
    table: str, row: str, data: DataSpec, model: Any, metrics: tuple[str, ...]
) -> Recipe:
    """400 steps of 64 images, the last weights."""
    return Recipe(
        paper="viewpoints",
        table=table,
        row=row,
        steps=400,
        validate_every=400,
        batch_size=64,
        data=data,
        model=model,
        task=Classify(loss="cross_entropy"),
        optimizer=OPTIMIZER,
        schedule=ScheduleSpec(kind="one_cycle"),
        choose="last",
        metrics=metrics,
    )


for table, (title, options, training) in SETTINGS.items():
    columns = _columns(table, options)
    add_table(
        Table(
            "viewpoints",
            table,
            f"Fruits, frozen EfficientNet-Lite0, {title}",
            columns,
            {row: {} for row in HEADS},
        )
    )
    for row, (model, fields) in HEADS.items():
        metrics = metrics_for(columns)[1:]  # every run has its accuracy on its own data
        if table == "table1" and model == "capsule-head":
            metrics += (f"pose-angle:{_data('half', options)}",)
        spec = DataSpec(name=_data("half", options), **training)
        config = model_config(model, weights="auto", **fields)
        recipe = head_recipe(table, row, spec, config, metrics)
        name = f"viewpoints/{table}/{head_name(row)}"
        add_recipe(name, f"{row} on fruits, {title}.", recipe)

ANGLE = _data("half", "")
add_table(
    Table(
        "viewpoints",
        "angle",
        "In-plane angle read from 16 numbers, mean error in degrees (chance: 90)",
        {
            "class pose": Column((ANGLE,), "angle_pose", scale=1, digits=1, lower=True),
            "random projection": Column((ANGLE,), "angle_random", scale=1, digits=1, lower=True),
        },
        {row: {} for row in HEADS if row.startswith("capsules")},
        sources=("table1",),
    )
)
