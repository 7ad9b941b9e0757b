"""Table 1: linear classification from presences and poses of objects, with rotations and affNIST.

The probe is a logistic regression. For the angles it is fitted on upright MNIST and tested on
digits rotated by up to that angle. The paper does not print the probe's data; this reading agrees
with its VAE, while the values of its capsules are closer to a probe on rotated digits, which has
separate columns. affNIST is for networks trained on 40x40 with shifts of up to 6 px, with a probe
on such digits and one on affNIST; and for networks trained on centered digits.
"""

from dataclasses import replace

from torchcaps.papers.generative.best import BEST, HELPED
from torchcaps.papers.generative.setting import (
    AUTHORS,
    METRIC,
    PLAIN,
    Row,
    probe,
    rotated,
    two_rows,
    unsupervised,
)
from torchcaps.papers.tables import Column, Table, add_table
from torchcaps.training.registry import add_recipe

ANGLES = (0, 45, 90, 135, 180)
SHIFTED, CENTRED, DRAWN = "translated:mnist", "centred:mnist", "affnist-like:mnist,copies=1"
COLUMNS = {
    **{
        str(angle): Column((rotated(angle),), METRIC, 1.0, fit="mnist train+val",
                           note="probe on upright MNIST")
        for angle in ANGLES
    },
    "affNIST": Column((DRAWN,), METRIC, 1.0, fit=f"{SHIFTED} train+val",
                      note="probe on shifted MNIST"),
    "SVHN": Column(("svhn",), "kmeans_accuracy", 1.0, note="k-means, of SCAE's own paper"),
    "affNIST (probe on affNIST)": Column((DRAWN,), METRIC, 1.0, fit="train+val",
                                         note="probe on transformed training digits"),
    "affNIST (trained centred)": Column((DRAWN,), METRIC, 1.0, fit=f"{CENTRED} train+val",
                                        note="trained on centered digits, probe on them"),
    **{
        f"{angle} (probe on turned)": Column((rotated(angle),), METRIC, 1.0, fit="train+val",
                                             note="probe on rotated digits")
        for angle in ANGLES[1:]
    },
}  # fmt: skip
PRINTED = {
    **{
        row: dict(zip((*map(str, ANGLES), "affNIST"), values, strict=True))
        for row, values in {
            "t0": (0.96, 0.78, 0.56, 0.47, 0.44, 0.88),
            "t0, A0": (0.97, 0.90, 0.77, 0.69, 0.65, 0.92),
            "VAE": (0.94, 0.69, 0.44, 0.35, 0.34, 0.40),
        }.items()
    },
    "SCAE": {"affNIST": 0.92, "SVHN": 0.55},
    "SCAE, rotated last": {},
    "encoding per object, t0": {},
    "encoding per object, t0, A0": {},
    "one object, t0": {},
    "one object, t0, A0": {},
    "one object, encoded, t0": {},
    "from one object, t0": {},
    "from one object, t0, A0": {},
    "rare objects, t0": {},
    "rare objects, t0, A0": {},
}
"""t0: the encoder of the text, whose set transformer encodes all objects together in 32 numbers.
Encoding per object: 32 numbers for each object, an ablation. SCAE, rotated last: scales and shears
along the axes of a template, corners not aligned, where the authors' code rotates first and aligns
them; and shorter on affNIST. The rows below are ours. One object:
exactly one is on, summed out, its pose solved for or predicted by the encoder. From one object: the
paper's prior, initialized from objects learned in this way. Rare objects: initialized in the same
way, with a prior under which objects are rarely on."""
ROTATED_LAST = {"rotate": "last", "align_corners": False}
ROWS = {
    "t0": Row("state", "generative", ("t0", "t0+A0"), steps=150_000, fields={"state": "shared"}),
    "encoding per object, t0": Row("capsules", "generative", ("", "t0+A0")),
    "one object, t0": BEST._replace(
        name="one", features=("t0", "t0+A0"), fields={"frames": 1, "test_frames": 1}
    ),
    "one object, encoded, t0": Row(
        "first", "generative", ("t0",), steps=15_000, task=HELPED,
        fields={"objects": "one", "min_std": 0.05},
    ),
    "from one object, t0": Row(
        "from-one", "generative", ("t0", "t0+A0"), steps=30_000, fields={"min_std": 0.05}
    ),
    "rare objects, t0": Row(
        "rare", "generative", ("t0", "t0+A0"), steps=30_000,
        fields={"min_std": 0.05, "presence": 0.005, "learn_presence": False, "dummy_share": 1.0},
    ),
    "VAE": Row("vae", "vae", ("mu+sigma",), PLAIN),
    "SCAE": Row("scae", "scae", ("",), AUTHORS),
    "SCAE, rotated last": Row("scae-rotated-last", "scae", ("",), AUTHORS, fields=ROTATED_LAST),
}  # fmt: skip
BEFORE = {"from-one": "first", "rare": "first"}
"""Recipe: the recipe from which it starts."""
SCAE_24 = {
    row: ROWS[row]._replace(model="scae-24", fields={"padding": 1, **ROWS[row].fields})
    for row in ("SCAE", "SCAE, rotated last")
}
"""With 24 objects and parts, as in the paper's comparison on rotated digits; 28 px need padding."""
LONG = {"SCAE": {"optimizer": replace(AUTHORS, lr=3e-5), "steps": 300_000}}
"""Learning rate and steps of the authors' script, for affNIST."""
TESTED = {
    "": (
        "mnist",
        [(rotated(angle), "mnist") for angle in ANGLES]
        + [(rotated(angle), "") for angle in ANGLES[1:]],
    ),
    "/affnist": (SHIFTED, [(DRAWN, SHIFTED), (DRAWN, "")]),
    "/affnist-centred": (CENTRED, [(DRAWN, CENTRED)]),
}
"""End of a recipe's name: training data, and pairs of test data and the probe's data."""
add_table(
    Table(
        "generative",
        "table1",
        "Linear classification from presences and poses of objects",
        COLUMNS,
        PRINTED,
        derived={
            **two_rows("t0"),
            "VAE": ("VAE", "mu+sigma"),
            "encoding per object, t0, A0": ("encoding per object, t0", "t0+A0"),
            **two_rows("one object, t0"),
            "one object, encoded, t0": ("one object, encoded, t0", "t0"),
            **two_rows("from one object, t0"),
            **two_rows("rare objects, t0"),
        },
    )
)
HOW = {
    "encoder": "adam 0",
    "LM 15": "levenberg 15",
    "Adam 50": "adam 50",
    "L-BFGS 20": "lbfgs 20",
    "LM 10, 8 starts": "levenberg 10, 8 starts",
}
"""Column of free-form inference: value of `how` in its records."""
add_table(
    Table(
        "generative",
        "free-form",
        "Free-form inference, accuracy of t0 on upright and rotated digits",
        {
            f"{angle}, {name}": Column(
                (rotated(angle),), "free_form_accuracy", 1.0, digits=3, how=how,
                fit="mnist train+val" if angle else "train+val",
            )
            for angle in (0, 45, 180)
            for name, how in HOW.items()
            if ("starts" in name) == (angle == 180) or name == "encoder"
        },
        {"one object, t0": {}},
        sources=("table1",),
        derived={"one object, t0": ("one object, t0", "t0")},
    )
)  # fmt: skip
for row in ROWS:
    for end, (data, tests) in TESTED.items():
        setting = SCAE_24.get(row, ROWS[row]) if data == "mnist" else ROWS[row]
        if end == "/affnist":
            setting = setting._replace(**LONG.get(row, {}))
        metrics = tuple(probe(test, on, key) for key in setting.features for test, on in tests)
        recipe = unsupervised("table1", row, setting, data, metrics)
        if first := BEFORE.get(setting.name):
            recipe = replace(recipe, before=f"generative/table1/{first}{end}")
        name = f"generative/table1/{setting.name}{end}"
        add_recipe(name, f"{row}, trained on {data}.", recipe)
