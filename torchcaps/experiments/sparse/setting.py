"""What the tables share: shifted MNIST on 40x40, 30,000 steps without labels, and the probes.

A support vector machine (RBF, C = 100, gamma = 0.1) reads the latent capsules:

    MNIST              learned and tested on centred digits
    affNIST (a)        as in the paper: learned from six transforms of every test digit, tested on
                       a seventh
    affNIST (a) clean  learned from a transform of every training digit, tested on one of each test
                       digit
    affNIST (b)        learned from centred training digits alone, tested on the same images
"""

from typing import Any

from torchcaps.experiments.tables import Column
from torchcaps.models.registry import model_config
from torchcaps.train.recipe import DataSpec, HardwareSpec, OptimiserSpec, Recipe, ScheduleSpec
from torchcaps.train.registry import add_recipe
from torchcaps.train.tasks import Sparse, TaskConfig

CENTRED = "centred:mnist"
DRAWN, SEVEN = "affnist-like:mnist,copies=1", "affnist-like:mnist,copies=7"
COLUMNS = {
    "MNIST": Column((CENTRED,), "svm_accuracy", fit="train+val"),
    "affNIST (a)": Column(
        (SEVEN,),
        "svm_accuracy",
        fit="test",
        note="the probe has seen six other transforms of every test digit",
    ),
    "affNIST (a) clean": Column(
        (DRAWN,), "svm_accuracy", fit="train+val", note="probe on transformed training digits"
    ),
    "affNIST (b)": Column(
        (DRAWN,), "svm_accuracy", fit=f"{CENTRED} train+val", note="probe on centred digits alone"
    ),
}
MORE = {
    "linear (b)": Column((DRAWN,), "linear_accuracy", fit=f"{CENTRED} train+val"),
    "k-means": Column((CENTRED,), "kmeans_accuracy"),
    "error": Column((CENTRED,), "sse", 1.0, lower=True, note="squared error of a centred digit"),
    "error, affNIST": Column((DRAWN,), "sse", 1.0, lower=True),
    "support 3/0": Column((CENTRED,), "support_ratio", 1.0, lower=True),
    "support 3/0, lower layer": Column((CENTRED,), "lower_support_ratio", 1.0, lower=True),
    "who is first": Column((CENTRED,), "first_entropy", 1.0, note="nats; evenly: log of capsules"),
    "dead": Column((CENTRED,), "dead", 1.0, digits=0, lower=True),
    "label given first": Column((CENTRED,), "label_entropy", 1.0, note="nats of doubt", lower=True),
    "shift": Column((CENTRED,), "equivariance_shift_x", 1.0, note="pose follows 1 px, linearly"),
    "turn": Column((CENTRED,), "equivariance_rotation", 1.0, note="pose follows 5 degrees"),
}


def probes(features: str = "", options: str = "") -> tuple[str, ...]:
    """The four columns as measures; options: more of the machine's, as `,name=value`."""
    more = (f",features={features}" if features else "") + options
    return (
        f"svm:{CENTRED},fit=train+val{more}",
        f"svm:{DRAWN},on={CENTRED},fit=train+val{more}",
        f"svm:{SEVEN},fit=test,scored=10000{more}",
        f"svm:{DRAWN},fit=train+val{more}",
    )


QUICK = (
    f"linear:{DRAWN},on={CENTRED},fit=train+val",
    f"kmeans:{CENTRED},fit=train+val",
    f"reconstruction:{CENTRED}",
    f"reconstruction:{DRAWN}",
    f"ranks:{CENTRED}",
    f"equivariance:{CENTRED}",
)
PAPER = {
    "optimiser": OptimiserSpec("adam", 1e-3),
    "schedule": ScheduleSpec("exponential", gamma=0.96, period=2000, final=1e-3),
}
"""Adam, and a rate that falls by 4 % in 2,000 steps, never below 1e-6."""


def unsupervised(
    table: str,
    row: str,
    model: str = "sparse",
    task: TaskConfig | None = None,
    *,
    steps: int = 30_000,
    data: str = "translated:mnist",
    measures: tuple[str, ...] = (*probes(), *QUICK),
    options: dict[str, Any] | None = None,
    **fields: Any,
) -> Recipe:
    """The paper's training: 128 images a step, every shift of up to 6 px."""
    return Recipe(
        paper="sparse",
        table=table,
        row=row,
        steps=steps,
        validate_every=min(steps, 5_000),
        batch_size=128,
        data=DataSpec(data),
        model=model_config(model, **fields),
        task=task or Sparse(),
        choose="last",
        measures=measures,
        hardware=HardwareSpec(precision="bf16", compile="auto"),
        **(options or PAPER),
    )


def add(name: str, claim: str, made: Recipe) -> None:
    add_recipe(f"sparse/{name}", claim, made)
