"""Classes taken off a model, and put on again: what timm's users do with theirs."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from torchcaps.errors import TorchcapsError

if TYPE_CHECKING:
    from torchcaps.models.base import CapsuleModel


def class_axes(model: "CapsuleModel") -> dict[str, int]:
    """Tensors that would be longer with one more class, and along which axis."""
    with torch.random.fork_rng(devices=[]):
        more = type(model)(replace(model.config, num_classes=model.config.num_classes + 1))  # pyright: ignore
    longer = more.state_dict()
    pairs = ((n, t.shape, longer[n].shape) for n, t in model.state_dict().items() if n in longer)
    return {
        name: [a != b for a, b in zip(now, then, strict=True)].index(True)
        for name, now, then in pairs
        if now != then
    }


def drop_classes(model: "CapsuleModel") -> None:
    """Leave the feature maps alone: every part above them goes, with its parameters."""
    _ = model.num_features  # which needs no class, and is asked for afterwards
    above = {name.partition(".")[0] for name in class_axes(model)}
    used: set[str] = set()
    hooks = [
        part.register_forward_hook(lambda *_, name=name: used.add(name))
        for name, part in model.named_children()
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
    model.class_names = ()
    model.train(training)


def reset_classes(model: "CapsuleModel", num_classes: int) -> None:
    """New classes on the same features; their parts begin anew, and so does what draws from them.

    num_classes: 0 leaves the features alone
    """
    if "logits" not in model.provides and model.config.num_classes:
        raise TorchcapsError(f"A {model.config.family} like this one knows no classes.")
    if num_classes < 0:
        raise TorchcapsError(f"num_classes={num_classes}: at least 0.")
    held, training = model.state_dict(), model.training
    place = next(model.parameters()).device
    axes = class_axes(model) if model.config.num_classes else {}
    config = replace(model.config, num_classes=num_classes or 1)
    model.__init__(config)  # pyright: ignore
    own = model.state_dict()
    model.load_state_dict(
        {n: t for n, t in held.items() if n not in axes and n in own and own[n].shape == t.shape},
        strict=False,
    )
    model.class_names, model.record = (), None
    model.to(place).train(training)
    if not num_classes:
        drop_classes(model)
