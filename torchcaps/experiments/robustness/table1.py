"""Table 1: train on MNIST placed at random on 40x40, test on that and on affNIST.

The paper stops when the test accuracy reaches about 99.22 %. Ours does not look at the test set: 20
epochs, the weights of the best validation epoch. affNIST is drawn (`affnist-like`).
"""

from torchcaps.experiments.registry import recipe
from torchcaps.experiments.tables import Column, Table, add_table
from torchcaps.models.registry import model_config
from torchcaps.train.recipe import (
    DataSpec,
    HardwareSpec,
    LossSpec,
    OptimiserSpec,
    Recipe,
    ScheduleSpec,
)

TABLE = add_table(
    Table(
        "robustness",
        "table1",
        "Trained on translated MNIST 40x40, tested on affine MNIST",
        {
            "MNIST": Column(("translated:mnist",)),
            "AffNIST": Column(("affnist-like:mnist", "affnist"), note="ours: affnist-like"),
        },
        {
            "GE-CapsNet": {"MNIST": 98.42, "AffNIST": 89.10},
            "SPARSECAPS": {"MNIST": 99, "AffNIST": 90.12},
            "SCAE": {"MNIST": 98.5, "AffNIST": 92.21},
            "EM-CapsNet": {"MNIST": 99.2, "AffNIST": 93.1},
            "ConvNet-FC": {"MNIST": 99.22, "AffNIST": 66},
            "CapsNet": {"MNIST": 99.23, "AffNIST": 79},
            "CapsNet-NoR": {"MNIST": 99.22, "AffNIST": 81.81},
            "Aff-CapsNet-DR": {"MNIST": 99.22, "AffNIST": 89.03},
            "Aff-CapsNet": {"MNIST": 99.23, "AffNIST": 93.21},
            "ConvNet-Avg": {"MNIST": 99.22, "AffNIST": 94.11},
        },
    )
)


def _recipe(row: str, model: str, loss: LossSpec) -> Recipe:
    return Recipe(
        paper="robustness",
        table="table1",
        row=row,
        epochs=20,
        batch_size=128,
        data=DataSpec("translated:mnist"),
        evaluate=("affnist-like:mnist",),
        model=model_config(model, image_size=40),
        loss=loss,
        optimiser=OptimiserSpec("adam", lr=1e-3),
        schedule=ScheduleSpec("one_cycle"),
        hardware=HardwareSpec(precision="bf16"),
    )


@recipe("robustness/table1/capsnet")
def capsnet() -> Recipe:
    """CapsNet with dynamic routing: 79 % on affNIST in the paper.

    torchcaps train robustness/table1/capsnet --record; 13.5M parameters.
    """
    return _recipe("CapsNet", "capsnet", LossSpec("margin"))


@recipe("robustness/table1/capsnet-nor")
def capsnet_nor() -> Recipe:
    """CapsNet without routing: 81.81 % on affNIST in the paper.

    torchcaps train robustness/table1/capsnet-nor --record; 13.5M parameters.
    """
    return _recipe("CapsNet-NoR", "capsnet-nor", LossSpec("margin"))


@recipe("robustness/table1/aff-capsnet-dr")
def aff_capsnet_dr() -> Recipe:
    """A shared transform and dynamic routing: 89.03 % on affNIST in the paper.

    torchcaps train robustness/table1/aff-capsnet-dr --record; 7.6M parameters (printed: 7.5M).
    """
    return _recipe("Aff-CapsNet-DR", "aff-capsnet-dr", LossSpec("margin"))


@recipe("robustness/table1/aff-capsnet")
def aff_capsnet() -> Recipe:
    """A shared transform and no routing: 93.21 % on affNIST in the paper.

    torchcaps train robustness/table1/aff-capsnet --record; 7.6M parameters (printed: 7.5M).
    """
    return _recipe("Aff-CapsNet", "aff-capsnet", LossSpec("margin"))


@recipe("robustness/table1/convnet-fc")
def convnet_fc() -> Recipe:
    """The LeNet-like baseline of the CapsNet paper: 66 % on affNIST.

    torchcaps train robustness/table1/convnet-fc --record; 35.4M parameters.
    """
    return _recipe("ConvNet-FC", "convnet-fc", LossSpec("cross_entropy"))


@recipe("robustness/table1/convnet-avg")
def convnet_avg() -> Recipe:
    """CapsNet's convolutions and global average pooling: 94.11 % on affNIST in the paper.

    torchcaps train robustness/table1/convnet-avg --record; 5.3M parameters.
    """
    return _recipe("ConvNet-Avg", "convnet-avg", LossSpec("cross_entropy"))
