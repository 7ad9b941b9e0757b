"""Settings shared by the tables: shifted MNIST on 40x40, 30,000 steps without labels, and probes.

The probe is a support vector machine (RBF, C = 100, gamma = 0.1) on the latent capsules:

    MNIST              fitted and tested on centered digits
    affNIST (a)        as in the paper: fitted on six transforms of every test digit, tested on a
                       seventh
    affNIST (a) clean  fitted on one transform of every training digit, tested on one of each test
                       digit
    affNIST (b)        fitted on centered training digits only, tested on the same images
"""

from typing import Any

from torchcaps.models.registry import model_config
from torchcaps.papers.tables import Column
from torchcaps.training.recipe import DataSpec, HardwareSpec, OptimizerSpec, Recipe, ScheduleSpec
from torchcaps.training.registry import add_recipe
from torchcaps.training.tasks import Sparse, TaskConfig

CENTRED = "centred:mnist"
DRAWN, SEVEN = "affnist-like:mnist,copies=1", "affnist-like:mnist,copies=7"
COLUMNS = {
    "MNIST": Column((CENTRED,), "svm_accuracy", fit="train+val"),
    "affNIST (a)": Column(
        (SEVEN,),
        "svm_accuracy",
        fit="test",
        note="probe on six other transforms of every test digit",
    ),
    "affNIST (a) clean": Column(
        (DRAWN,), "svm_accuracy", fit="train+val", note="probe on transformed training digits"
    ),
    "affNIST (b)": Column(
        (DRAWN,), "svm_accuracy", fit=f"{CENTRED} train+val", note="probe on centered digits only"
    ),
}
MORE = {
    "linear (b)": Column((DRAWN,), "linear_accuracy", fit=f"{CENTRED} train+val"),
    "k-means": Column((CENTRED,), "kmeans_accuracy"),
    "error": Column((CENTRED,), "sse", 1.0, lower=True, note="squared error of a centered digit"),
    "error, affNIST": Column((DRAWN,), "sse", 1.0, lower=True),
    "support 3/0": Column((CENTRED,), "support_ratio", 1.0, lower=True),
    "support 3/0, lower layer": Column((CENTRED,), "lower_support_ratio", 1.0, lower=True),
    "who is first": Column(
        (CENTRED,), "first_entropy", 1.0, note="nats; log of capsules if uniform"
    ),
    "dead": Column((CENTRED,), "dead", 1.0, digits=0, lower=True),
    "label given first": Column(
        (CENTRED,), "label_entropy", 1.0, note="conditional entropy, nats", lower=True
    ),
    "shift": Column(
        (CENTRED,), "equivariance_shift_x", 1.0, note="linear change of the pose by 1 px"
    ),
    "turn": Column(
        (CENTRED,), "equivariance_rotation", 1.0, note="linear change of the pose by 5 degrees"
    ),
}


def probes(features: str = "", options: str = "") -> tuple[str, ...]:
    """Metrics of the four columns; options: further options of the SVM, as `,name=value`."""
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
    "optimizer": OptimizerSpec(kind="adam", lr=1e-3),
    "schedule": ScheduleSpec(kind="exponential", gamma=0.96, period=2000, final=1e-3),
}
"""Adam with a learning rate that decays by 4 % every 2,000 steps to at least 1e-6."""


def unsupervised(
    table: str,
    row: str,
    model: str = "sparse",
    task: TaskConfig | None = None,
    *,
    steps: int = 30_000,
    data: str = "translated:mnist",
    metrics: tuple[str, ...] = (*probes(), *QUICK),
    options: dict[str, Any] | None = None,
    **fields: Any,
) -> Recipe:
    """The paper's training: batch size 128, all shifts of up to 6 px."""
    return Recipe(
        paper="sparse",
        table=table,
        row=row,
        steps=steps,
        validate_every=min(steps, 5_000),
        batch_size=128,
        data=DataSpec(name=data),
        model=model_config(model, **fields),
        task=task or Sparse(),
        choose="last",
        metrics=metrics,
        hardware=HardwareSpec(precision="bf16", compile="auto"),
        **(options or PAPER),
    )


def add(name: str, claim: str, recipe: Recipe) -> None:
    add_recipe(f"sparse/{name}", claim, recipe)
