"""Where capsules could earn accuracy on photographs: pairs of heads with and without them.

The head without capsules is an MLP at each position, with as many parameters to 0.1 %, and has the
same photographs, augmentation, steps and optimizer. Where the poses of class capsules are tied over
frames or follow an angle, its hidden layer is and does. Rows of differences are paired by seed.
Agreement of several views at test time is a column.

Every fourth fruit is for validation alone: these choose the learning rate of each row, on their
novel axis, and the table is of the other fruits.
"""

from typing import Any

from torchcaps.models.registry import model_config
from torchcaps.papers.tables import Column, Table, add_table
from torchcaps.training.recipe import DataSpec, OptimizerSpec, Recipe, ScheduleSpec
from torchcaps.training.registry import add_recipe
from torchcaps.training.tasks import Classify, Equivariant

VIEWS, SMALL, OVERLAP = (
    tuple(f"{name}:{test},size={size},classes=seen" for test in ("half", "axis"))
    for name, size in (("fruits-views", 224), ("fruits-views", 96), ("fruits-overlap", 224))
)
ROTATED = {"augment": ("rotate:180",), "copies": 3}
PLAIN = Classify(loss="cross_entropy")
IDEAS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("nothing added", {}),
    "tied": ("poses tied over frames", {"task": Equivariant(loss="cross_entropy", poses="tied")}),
    "turn": (
        "poses equivariant to the turn",
        {"task": Equivariant(loss="cross_entropy", poses="turn")},
    ),
    "rotation": (
        "poses equivariant in the plane",
        {"task": Equivariant(loss="cross_entropy", poses="rotation"), "training": ROTATED},
    ),
    "overlap": (
        "overlapping fruits",
        {"data": OVERLAP, "recipe": {"steps": 1200, "validate_every": 1200}},
    ),
    "finetuned": (
        "fine-tuned backbone, 96 px",
        {
            "data": SMALL,
            "training": {"augment": ("rotate:180",)},
            "model": {"frozen": "last:2"},
            "recipe": {"steps": 150, "validate_every": 150, "batch_size": 32},
        },
    ),
}
"""Of each idea its name in the table, and what its recipes differ in from those of the first. Heads
on overlapping fruits are far from trained after 400 steps."""
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "capsules": ("capsule-head", {"routing": "self"}),
    "no capsules": ("vote-head", {"hidden": 272}),
}
RATES = {
    "none": (4e-3, 1e-2),
    "tied": (1e-2, 1e-2),
    "turn": (1e-2, 1e-3),
    "rotation": (1e-2, 1e-3),
    "overlap": (4e-3, 1e-3),
    "finetuned": (1e-3, 1e-3),
}
"""Learning rates with and without capsules: the best of 0.001, 0.004 and 0.01 by the mean accuracy
of seeds 0 to 2 (of the fine-tuned backbone, seed 0) on the novel axis of the validation fruits:
`:axis` and `classes=unseen` in place of the recipe's."""

COLUMNS = {
    "other half": Column((VIEWS[0], OVERLAP[0], SMALL[0])),
    "novel axis": Column((VIEWS[1], OVERLAP[1], SMALL[1])),
    "novel axis, three views": Column((VIEWS[1], SMALL[1]), "views3_accuracy"),
}
TITLES = [title for title, _ in IDEAS.values()]
add_table(
    Table(
        "viewpoints",
        "ideas",
        "Capsules and the same head without them, by idea; differences: 95 % intervals over seeds",
        COLUMNS,
        {f"{title}, {kind}": {} for title in TITLES for kind in (*HEADS, "difference")},
        differences={
            f"{title}, difference": (f"{title}, capsules", f"{title}, no capsules")
            for title in TITLES
        },
    )
)
for idea, (title, changes) in IDEAS.items():
    half, axis = data = changes.get("data", VIEWS)
    metrics = (f"accuracy:{axis}",) + (() if data == OVERLAP else (f"views:{axis}",))
    for (kind, (model, fields)), rate in zip(HEADS.items(), RATES[idea], strict=True):
        recipe = Recipe(
            paper="viewpoints",
            table="ideas",
            row=f"{title}, {kind}",
            data=DataSpec(name=half, **changes.get("training", {})),
            model=model_config(model, weights="auto", **fields, **changes.get("model", {})),
            task=changes.get("task", PLAIN),
            optimizer=OptimizerSpec(kind="adamw", lr=rate, weight_decay=0.01),
            schedule=ScheduleSpec(kind="one_cycle"),
            choose="last",
            metrics=metrics,
            **{"steps": 400, "validate_every": 400, "batch_size": 64, **changes.get("recipe", {})},
        )
        suffix = "plain" if kind == "no capsules" else kind
        add_recipe(f"viewpoints/ideas/{idea}-{suffix}", f"{title}, {kind}, on fruits.", recipe)
