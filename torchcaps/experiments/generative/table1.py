"""Table 1: what presences and poses of objects know of a class, upright, turned, and on affNIST.

A logistic regression reads them. For the angles it learns from upright MNIST and is tested on
digits turned by up to so much; which data the paper's probe saw is not printed, and this reading
agrees with its VAE. affNIST is of networks trained on 40x40 with shifts of up to 6 px, read by a
probe on such digits, and by one on affNIST; and of networks trained on centred digits.
"""

from typing import Any

from torchcaps.experiments.tables import Column, Table, add_table
from torchcaps.models.registry import model_config
from torchcaps.train.recipe import DataSpec, HardwareSpec, OptimiserSpec, Recipe, ScheduleSpec
from torchcaps.train.registry import add_recipe
from torchcaps.train.tasks import Elbo

ANGLES = (0, 45, 90, 135, 180)
SHIFTED, CENTRED, DRAWN = "translated:mnist", "centred:mnist", "affnist-like:mnist,copies=1"
METRIC = "logistic_accuracy"


def turned(angle: int) -> str:
    return f"rotated:mnist,degrees={angle}" if angle else "mnist"


COLUMNS = {
    **{
        str(angle): Column((turned(angle),), METRIC, 1.0, fit="mnist train+val",
                           note="probe on upright MNIST")
        for angle in ANGLES
    },
    "affNIST": Column((DRAWN,), METRIC, 1.0, fit=f"{SHIFTED} train+val",
                      note="probe on shifted MNIST"),
    "affNIST (probe on affNIST)": Column((DRAWN,), METRIC, 1.0, fit="train+val",
                                         note="probe on transformed training digits"),
    "affNIST (trained centred)": Column((DRAWN,), METRIC, 1.0, fit=f"{CENTRED} train+val",
                                        note="trained on centred digits, probe on them"),
}  # fmt: skip
PRINTED = {
    "t0": dict(zip(map(str, ANGLES), (0.96, 0.78, 0.56, 0.47, 0.44), strict=True))
    | {"affNIST": 0.88},
    "t0, A0": dict(zip(map(str, ANGLES), (0.97, 0.90, 0.77, 0.69, 0.65), strict=True))
    | {"affNIST": 0.92},
    "VAE": dict(zip(map(str, ANGLES), (0.94, 0.69, 0.44, 0.35, 0.34), strict=True))
    | {"affNIST": 0.40},
    "SCAE": {"affNIST": 0.92},
}
ROWS: dict[str, tuple[str, str, tuple[str, ...], OptimiserSpec]] = {
    "t0": ("capsules", "generative", ("", "t0+A0"),
           OptimiserSpec("adam", 1e-3, clip=1000.0,
                         rates=("process=10",))),
    "VAE": ("vae", "vae", ("mu+sigma",), OptimiserSpec("adam", 1e-3)),
}  # fmt: skip
"""Row: the recipe's name, its model, what its probes read, its optimiser."""
DATA = {"": "mnist", "/affnist": SHIFTED, "/affnist-centred": CENTRED}
add_table(
    Table(
        "generative",
        "table1",
        "Linear classification from what objects say",
        COLUMNS,
        PRINTED,
        derived={"t0, A0": ("t0", "t0+A0"), "VAE": ("VAE", "mu+sigma")},
    )
)


def _probes(where: str, features: tuple[str, ...]) -> tuple[str, ...]:
    tested = {
        "": [(turned(angle), "mnist") for angle in ANGLES],
        "/affnist": [(DRAWN, SHIFTED), (DRAWN, "")],
        "/affnist-centred": [(DRAWN, CENTRED)],
    }[where]
    return tuple(
        f"logistic:{data}" + (f",on={on}" if on else "") + ",fit=train+val"
        + (f",features={name}" if name else "")
        for name in features
        for data, on in tested
    )  # fmt: skip


def unsupervised(row: str, where: str, steps: int = 60_000, **fields: Any) -> Recipe:
    """Trained without labels, 128 images a step, a cosine to zero."""
    _, model, features, optimiser = ROWS[row]
    return Recipe(
        paper="generative",
        table="table1",
        row=row,
        steps=steps,
        validate_every=10_000,
        batch_size=128,
        data=DataSpec(DATA[where]),
        model=model_config(model, **fields),
        task=Elbo(),
        choose="last",
        measures=_probes(where, features),
        optimiser=optimiser,
        schedule=ScheduleSpec("cosine", warmup=0.01),
        hardware=HardwareSpec(precision="bf16", compile="auto"),
    )


for row, (name, *_) in ROWS.items():
    for where, data in DATA.items():
        add_recipe(
            f"generative/table1/{name}{where}",
            f"The row {row}, trained on {data}.",
            unsupervised(row, where),
        )
