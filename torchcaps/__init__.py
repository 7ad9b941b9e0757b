"""Capsule networks in PyTorch: train, inspect and compare them with ConvNet baselines.

    import torchcaps

    model = torchcaps.create_model("capsnet-small.digits", pretrained=True)
    model.predict("photo.png")[0]                         # the likeliest classes of an image

    run = torchcaps.fit("capsnet-small", data="folder:photos", epochs=20)
    torchcaps.evaluate(run, metrics=["accuracy", "calibration"])
    torchcaps.predict(run, ["a.jpg"])
    torchcaps.report(run)

`fit` also takes a model instance or a `Recipe`, and data as arrays, a torch Dataset or a
DataLoader. `torchcaps.list_models()` names the models, `torchcaps.layers` and `torchcaps.routing`
have their parts. The modules and who imports whom: docs/background/architecture.md.

Letters in shapes: B batch, C,H,W channels, height, width, I children, J parents, D child pose size,
E parent pose size, R rows of a matrix pose, T iterations, N dataset size, Y classes, L positions,
K kernel side. Child axis before parent axis, pose last: poses [B,I,D], weight [I,J,D,E], coupling
[B,I,J].
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from torchcaps import (
        analysis,
        data,
        functional,
        layers,
        losses,
        metrics,
        models,
        plugins,
        routing,
        training,
    )
    from torchcaps.api import embed, evaluate, explore, export, fit, plot, predict, report, resume
    from torchcaps.estimator import CapsuleClassifier
    from torchcaps.models import create_model, list_models
    from torchcaps.parts import Parts
    from torchcaps.sweeps.driver import sweep
    from torchcaps.training.load import load
    from torchcaps.training.recipe import Recipe
    from torchcaps.training.run import Run

_API = ("embed", "evaluate", "explore", "export", "fit", "plot", "predict", "report", "resume")
_HOMES = {
    "CapsuleClassifier": "estimator",
    "Parts": "parts",
    "Recipe": "training.recipe",
    "Run": "training.run",
    "create_model": "models",
    "list_models": "models",
    "load": "training.load",
    "sweep": "sweeps.driver",
    **dict.fromkeys(_API, "api"),
}
_PACKAGES = (
    "analysis", "data", "functional", "layers", "losses", "metrics", "models", "plugins",
    "routing", "training",
)  # fmt: skip
__all__ = [
    "CapsuleClassifier",
    "Parts",
    "Recipe",
    "Run",
    "analysis",
    "create_model",
    "data",
    "embed",
    "evaluate",
    "explore",
    "export",
    "fit",
    "functional",
    "layers",
    "list_models",
    "load",
    "losses",
    "metrics",
    "models",
    "plot",
    "plugins",
    "predict",
    "report",
    "resume",
    "routing",
    "sweep",
    "training",
]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: torch alone takes a second."""
    if name in _HOMES:
        return getattr(import_module(f"torchcaps.{_HOMES[name]}"), name)
    if name in _PACKAGES:
        return import_module(f"torchcaps.{name}")
    raise AttributeError(f"module 'torchcaps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
