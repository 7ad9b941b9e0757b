"""Remove or replace the classifier of a model, as timm's `reset_classifier` does."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from torchcaps.errors import TorchcapsError

if TYPE_CHECKING:
    from torchcaps.models.base import Model


def class_axes(model: "Model") -> dict[str, int]:
    """Tensors whose shape depends on the number of classes -> the axis of the classes."""
    with torch.random.fork_rng(devices=[]):
        larger = type(model)(replace(model.config, num_classes=model.config.num_classes + 1))  # pyright: ignore
    other = larger.state_dict()
    shapes = ((n, t.shape, other[n].shape) for n, t in model.state_dict().items() if n in other)
    return {
        name: [a != b for a, b in zip(shape, larger_shape, strict=True)].index(True)
        for name, shape, larger_shape in shapes
        if shape != larger_shape
    }


def drop_classes(model: "Model") -> None:
    """Keep the feature extractor only: remove all modules above it."""
    _ = model.num_features  # cached before the modules are removed
    above = {name.partition(".")[0] for name in class_axes(model)}
    used: set[str] = set()
    hooks = [
        module.register_forward_hook(lambda *_, name=name: used.add(name))
        for name, module in model.named_children()
    ]
    training = model.training
    with torch.no_grad():
        model.eval().forward_features(torch.zeros(1, *model.config.image_shape))
    for hook in hooks:
        hook.remove()
    for name, _ in list(model.named_children()):
        if name in above or name not in used:
            setattr(model, name, None)
    model.config = replace(model.config, num_classes=0)
    model.class_names, model.temperature = (), None
    model.train(training)


def reset_classes(model: "Model", num_classes: int) -> None:
    """Replace the classifier, and initialize it and the decoder of its classes again.

    num_classes: 0 removes the classifier
    """
    if "logits" not in model.provides and model.config.num_classes:
        raise TorchcapsError(f"This {model.config.family} has no classifier to replace.")
    if num_classes < 0:
        raise TorchcapsError(f"num_classes={num_classes}: must be at least 0.")
    tensors, training = model.state_dict(), model.training
    device = next(model.parameters()).device
    axes = class_axes(model) if model.config.num_classes else {}
    config = replace(model.config, num_classes=num_classes or 1)
    model.__init__(config)  # pyright: ignore
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    model.load_state_dict(
        {n: t for n, t in tensors.items() if n not in axes and shapes.get(n) == t.shape},
        strict=False,
    )
    model.class_names, model.record, model.temperature = (), None, None
    model.to(device).train(training)
    if not num_classes:
        drop_classes(model)
