"""Usual training of each model: task, optimizer and precision, which `train MODEL` takes over.

A model that is not listed is trained as its family is; the families' rows have the family's name.
"""

from typing import Literal, NamedTuple

from torchcaps.errors import TorchcapsError
from torchcaps.models.base import ModelConfig
from torchcaps.training.recipe import OptimizerSpec
from torchcaps.training.task import TaskConfig
from torchcaps.training.tasks import Classify, Elbo, Masked, Reconstruct, Sparse, task_class


class Defaults(NamedTuple):
    task: TaskConfig
    optimizer: OptimizerSpec
    precision: Literal["fp32", "bf16"] = "bf16"


MARGIN, SOFTMAX = Classify(loss="margin"), Classify(loss="cross_entropy")
SIGMOID, SPREAD = Classify(loss="binary_cross_entropy"), Classify(loss="spread", margin=0.2)
SMOOTHED = Classify(loss="cross_entropy", smoothing=0.1)
HELPED = Elbo(usage=10.0, usage_steps=10_500, soft=8.0, soft_steps=7_500, seed_at=1000)
ADAM = OptimizerSpec(kind="adam", lr=1e-3)
ADAM_EMA = OptimizerSpec(kind="adam", lr=1e-3, ema=0.999)
ADAM_SMALL = OptimizerSpec(kind="adam", lr=4e-3, ema=0.99)
ADAMW = OptimizerSpec(kind="adamw", lr=2e-3, weight_decay=0.05, ema=0.999)
HEAD = OptimizerSpec(kind="adamw", lr=4e-3, weight_decay=0.01)
SGD = OptimizerSpec(kind="sgd", lr=0.1, weight_decay=1e-4)
SGD_DECAYED = OptimizerSpec(kind="sgd", lr=0.1, weight_decay=5e-4)
SGD_FAST = OptimizerSpec(
    kind="sgd", lr=0.3, weight_decay=5e-4, nesterov=True, decay_all=False, ema=0.999
)
CLIPPED = OptimizerSpec(kind="adam", lr=1e-3, clip=1000.0, rates=("process=10",))
POINTS = OptimizerSpec(kind="adam", lr=1e-3, clip=10.0)
EM_RESNET = Defaults(SPREAD, OptimizerSpec(kind="adam", lr=0.01, ema=0.999))
MULTI = Defaults(SIGMOID, SGD_DECAYED)

DEFAULTS = {
    "autoencoder": Defaults(Reconstruct(), OptimizerSpec(kind="adam", lr=2e-4)),
    "capsule-head": Defaults(SOFTMAX, HEAD, "fp32"),
    "capsnet": Defaults(MARGIN, ADAM),
    "capsnet-modern": Defaults(Classify(loss="margin", reconstruction=0.01), ADAMW),
    "capsnet-resnet": Defaults(MARGIN, ADAM_EMA),
    "capsnet-resnet-256": Defaults(MARGIN, ADAM_EMA),
    "capsnet-small": Defaults(Classify(loss="margin", reconstruction=0.002), ADAM_SMALL, "fp32"),
    "cnn": Defaults(SMOOTHED, SGD_FAST),
    "cnn-multi": MULTI,
    "cnn-multi-fc": MULTI,
    "constellation": Defaults(Elbo(), POINTS, "fp32"),
    "constellation-covers": Defaults(
        Elbo(), OptimizerSpec(kind="adam", lr=0.03, clip=10.0), "fp32"
    ),
    "constellation-scae": Defaults(Elbo(), POINTS, "fp32"),
    "convnet": Defaults(SOFTMAX, ADAM),
    "convnet-avg-small": Defaults(SOFTMAX, ADAM_SMALL, "fp32"),
    "convnet-cr": Defaults(SIGMOID, ADAM),
    "convnet-cr-sf": Defaults(MARGIN, ADAM),
    "convnet-fc-lk": Defaults(SIGMOID, ADAM),
    "convnet-modern": Defaults(SOFTMAX, ADAMW),
    "convnet-r": Defaults(SOFTMAX, ADAM),
    "dynamic-multi": MULTI,
    "em-capsnet": Defaults(SPREAD, OptimizerSpec(kind="adam", lr=5e-3)),
    "em-resnet": EM_RESNET,
    "em-simple": EM_RESNET,
    "ge-capsnet": Defaults(SOFTMAX, ADAM, "fp32"),
    "generative": Defaults(Elbo(), CLIPPED),
    "generative-framed": Defaults(HELPED, CLIPPED),
    "generative-one": Defaults(HELPED, CLIPPED),
    "inverted": Defaults(SMOOTHED, SGD_FAST),
    "inverted-multi": MULTI,
    "inverted-multi-matrix": MULTI,
    "inverted-multi-matrix-42m": MULTI,
    "mcae": Defaults(SOFTMAX, SGD),
    "mcae-pretrain": Defaults(Masked(), SGD),
    "plain-head": Defaults(SOFTMAX, HEAD, "fp32"),
    "scae": Defaults(Elbo(), OptimizerSpec(kind="rmsprop", lr=1e-4, beta=0.9, eps=7.8e-4)),
    "sparse": Defaults(Sparse(online=True), ADAM),
    "sparse-dense": Defaults(Sparse(), ADAM),
    "sparse-small": Defaults(Sparse(), OptimizerSpec(kind="adam", lr=3e-3), "fp32"),
    "sr-capsnet": Defaults(SOFTMAX, SGD),
    "timm": Defaults(SOFTMAX, SGD),
    "vae": Defaults(Elbo(), ADAM),
    "view-capsnet": Defaults(SOFTMAX, ADAMW),
    "vit-small": Defaults(
        SOFTMAX, OptimizerSpec(kind="adamw", lr=1e-3, weight_decay=0.05, decay_all=False)
    ),
}


def defaults(name: str, config: ModelConfig, labelled: bool) -> Defaults:
    """The usual training of a model; an error where it needs labels and the data has none."""
    stage = f"{config.family}-{getattr(config, 'stage', '')}"  # mcae-pretrain-small, an instance
    names = [n for n in (stage, name, config.family) if n in DEFAULTS]
    usual = DEFAULTS[names[0]] if names else Defaults(SOFTMAX, ADAMW)
    if task_class(usual.task).needs_labels and not labelled:
        raise TorchcapsError(
            f"{name} learns from labels, and these images have none. Models that learn without "
            "labels: sparse, vae, autoencoder, mcae-pretrain."
        )
    return usual
