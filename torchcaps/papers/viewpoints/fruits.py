"""Fruits on two axes: heads on the frozen features of EfficientNet-Lite0. Not a paper's table.

Every head trains for 400 steps of 64 photographs of the first half of a turn, with one optimizer
and rate, and is tested on the other half and on a turn about another axis. `copies` adds three
rotated copies of each photograph, `gray` has gray photographs, `few` three photographs of a class.
"""

from typing import Any

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
}
OPTIMIZER = OptimizerSpec(kind="adamw", lr=4e-3, weight_decay=0.01)


def _data(test: str, mode: str) -> str:
    return f"fruits-views:{test},size=224{mode}"


for table, (title, mode, options) in SETTINGS.items():
    half, axis = (_data(test, mode) for test in ("half", "axis"))
    add_table(
        Table(
            "viewpoints",
            table,
            f"Fruits, frozen EfficientNet-Lite0, {title}",
            {
                "other half": Column((half,)),
                "novel axis": Column((axis,)),
                "ECE, other half": Column((half,), "ece", lower=True),
                "ECE, novel axis": Column((axis,), "ece", lower=True),
            },
            {row: {} for row in HEADS},
        )
    )
    for row, (model, fields) in HEADS.items():
        recipe = Recipe(
            paper="viewpoints",
            table=table,
            row=row,
            steps=400,
            validate_every=400,
            batch_size=64,
            data=DataSpec(name=half, **options),
            model=model_config(model, weights="auto", **fields),
            task=Classify(loss="cross_entropy"),
            optimizer=OPTIMIZER,
            schedule=ScheduleSpec(kind="one_cycle"),
            choose="last",
            metrics=("calibration", f"accuracy:{axis}", f"calibration:{axis}"),
        )
        name = row.lower().replace("capsules, ", "capsules-")
        add_recipe(f"viewpoints/{table}/{name}", f"{row} on fruits, {title}.", recipe)
