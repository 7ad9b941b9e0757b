"""Table 4: smallNORB from viewpoints that training never saw; and one toy after the other.

A copy of smallNORB without the poses of its train half tests on five toys, which is few. So
`views` tests on each of the others in turn, and its networks are trained as `best`'s with large
patches, all for as many epochs; "deep" ones have small patches, and what `best`'s deep rows
have. SR-CapsNet had half of the epochs at first, with three of the toys.
"""

from dataclasses import replace

from torchcaps.experiments.mcae.best import best_pretraining, deeper, hardened
from torchcaps.experiments.mcae.setting import SETTINGS, add, finetuning, pretraining
from torchcaps.experiments.mcae.table1 import LARGE, beside
from torchcaps.experiments.tables import Column, Table, add_table
from torchcaps.train.recipe import Recipe

VIEWS = {
    "novel azimuth": "smallnorb-azimuth,crop=32",
    "novel elevation": "smallnorb-elevation,crop=32",
}
SR_CAPSNET = {"novel azimuth": 80.14, "novel elevation": 84.09}
add_table(
    Table(
        "mcae",
        "table4",
        "smallNORB, viewpoints that training never saw",
        {name: Column((data,)) for name, data in VIEWS.items()},
        {
            "MCAE": {},
            "MCAE (no pretraining)": {},
            **{row: {} for row in LARGE.values()},
            "SR-CapsNet": SR_CAPSNET,
            "EM": {"novel azimuth": 79.84, "novel elevation": 82.49},
            "DR": {"novel azimuth": 79.67, "novel elevation": 83.63},
            "VB": {},
        },
    )
)
TOYS = (0, 1, 2, 3, 5)
"""Toys of smallNORB's test half."""
TRIED = (0, 2, 5)
"""Toys that SR-CapsNet was tested on after 50 epochs."""
DEEP = deeper("smallNORB")
ROWS = {
    "best": {},
    "best, no pretraining": {},
    "best, deep": {},
    "best, deep, no pretraining": {},
    "SR-CapsNet": SR_CAPSNET,
    "SR-CapsNet, 50 epochs": SR_CAPSNET,
}
add_table(
    Table(
        "mcae",
        "views",
        "The same, trained as best, tested on one toy of each category after the other",
        {
            n: Column(tuple(f"{d},toy={toy}" for toy in TOYS), note="deviation and best over toys")
            for n, d in VIEWS.items()
        },
        ROWS,
    )
)
for column, data in VIEWS.items():
    add_table(
        Table(
            "mcae",
            f"views-{column.split()[1]}",
            f"The same, {column}, toy by toy",
            {f"toy {toy}": Column((f"{data},toy={toy}",)) for toy in TOYS},
            {row: {} for row in ROWS},
            sources=("views",),
        )
    )


def on(data: str, recipe: Recipe) -> Recipe:
    return replace(recipe, data=replace(recipe.data, name=data))


for column, data in VIEWS.items():
    short = column.split()[1]
    first = on(data, pretraining("smallNORB", **SETTINGS["smallNORB"].drawn))
    coarse = pretraining("smallNORB", row="pretraining, large patches")
    said = f"Pretraining on the views that the {column} set trains on"
    add(f"pretrain/{short}", f"{said}.", first)
    add(f"pretrain/{short}-large", f"{said}, large patches.", on(data, coarse))
    for row in ("DR", "EM", "VB", "SR-CapsNet"):
        made = beside("table4", row, "smallNORB", data)
        add(f"table4/{short}-{row.lower()}", f"{column}, {row} beside it.", made)
    for row, before, end in (
        ("MCAE", f"mcae/pretrain/{short}", ""),
        ("MCAE (no pretraining)", "", "-scratch"),
    ):
        fields = SETTINGS["smallNORB"].small
        made = finetuning("table4", row, "smallNORB", before, data, **fields)
        add(f"table4/{short}{end}", f"{column}, {row}.", replace(made, choose="loss"))
        before = before and f"{before}-large"
        made = finetuning("table4", LARGE[row], "smallNORB", before, data)
        add(f"table4/{short}-large{end}", f"{column}, {LARGE[row]}.", made)
    for toy in TOYS:
        left, name = f"{data},toy={toy}", f"views/{short}-{toy}"
        said = f"Pretraining for {column}, without toy {toy}"
        plain = best_pretraining("smallNORB")
        deep = best_pretraining("smallNORB", "pretraining, best, deep", decoder_shared=True, **DEEP)
        for first, end, more in ((plain, "", "."), (deep, "-deep", ", eight blocks.")):
            add(f"{name}-pretrain{end}", said + more, replace(on(left, first), epochs=100))
        for row, end, before, epochs in (
            ("best", "", "pretrain", 100),
            ("best, no pretraining", "-scratch", "", 100),
            ("best, deep", "-deep", "pretrain-deep", 100),
            ("best, deep, no pretraining", "-deep-scratch", "", 100),
            ("SR-CapsNet", "-sr-capsnet", "", 100),
            ("SR-CapsNet, 50 epochs", "-sr-capsnet-50", "", 50),
        ):
            if epochs == 50 and toy not in TRIED:
                continue
            before = before and f"mcae/{name}-{before}"
            model = "sr-capsnet" if row.startswith("SR-CapsNet") else "mcae"
            fields = DEEP if "deep" in row else {}
            made = finetuning("views", row, "smallNORB", before, left, model, **fields)
            made = replace(hardened(made, "smallNORB"), epochs=epochs)
            add(f"{name}{end}", f"{column}, {row}, tested on toy {toy}.", made)
