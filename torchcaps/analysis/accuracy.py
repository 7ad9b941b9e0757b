"""Which images a model has right: the top class, all of several, or exactly those."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from torchcaps.analysis.measures import Measure, register_measure
from torchcaps.data import Batch, Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.losses import multi_hot
from torchcaps.models import CapsuleModel, Output


def outputs(
    model: CapsuleModel, split: Split, batch_size: int = 500
) -> Iterator[tuple[Batch, Output]]:
    """The whole split through the model, without its decoder."""
    for batch in split.batches(batch_size):
        yield batch, model.encode(batch.images)


def logits_of(output: Output) -> Tensor:
    if output.logits is None:
        raise TorchcapsError("This model has no classes, so it can be neither right nor wrong.")
    return output.logits


def correct(logits: Tensor, labels: Tensor) -> Tensor:
    """Which images are right: the top class, or both of the top two. -> [B] bool"""
    if labels.ndim == 1:
        return logits.argmax(-1) == labels
    top = logits.topk(labels.shape[1], -1).indices
    counted = torch.arange(labels.shape[1], device=labels.device) < (labels >= 0).sum(
        1, keepdim=True
    )
    hit = (top[:, :, None] == labels[:, None, :]).any(-1)
    return (hit | ~counted).all(-1)


def exact(output: Output, labels: Tensor) -> Tensor:
    """Which images have exactly their labels above one half. labels [B,M] -> [B] bool"""
    claimed = logits_of(output).sigmoid() if output.scores is None else output.scores
    return ((claimed > 0.5) == (multi_hot(labels, claimed.shape[1]) > 0)).all(-1)


class Counter:
    """Counts right answers over the labelled images of a split, batch by batch, on its device."""

    def __init__(self, split: Split):
        device = split.images.device
        self.several = split.labels.ndim == 2
        self.right, self.exact, self.total = (torch.zeros((), device=device) for _ in range(3))

    def add(self, output: Output, labels: Tensor) -> None:
        labelled = labels.reshape(len(labels), -1)[:, 0] >= 0
        self.right += (correct(logits_of(output), labels) & labelled).sum()
        if self.several:
            self.exact += (exact(output, labels) & labelled).sum()
        self.total += labelled.sum()

    def numbers(self) -> dict[str, float]:
        """Accuracy; where images have several labels, also whether exactly those were claimed."""
        count = max(1.0, float(self.total))
        found = {"accuracy": float(self.right) / count}
        return found | ({"exact_match": float(self.exact) / count} if self.several else {})


@torch.no_grad()
def accuracy(model: CapsuleModel, split: Split) -> dict[str, float]:
    model.eval()
    counter = Counter(split)
    for batch, output in outputs(model, split):
        counter.add(output, batch.labels)
    return counter.numbers()


def probabilities(output: Output) -> Tensor:
    """What a model claims of each class: scores where it has them, else a softmax. -> [B,Y]

    Scores that nothing keeps below one are scaled down to it.
    """
    if output.scores is not None:
        scores = output.scores.float()
        return scores / scores.amax(-1, keepdim=True).clamp(min=1)
    return logits_of(output).float().softmax(-1)


@torch.no_grad()
def claims(model: CapsuleModel, split: Split) -> tuple[Tensor, Tensor]:
    """What a model claims of the labelled images. -> probabilities [N,Y], labels [N]"""
    model.eval()
    labelled = split.labels.reshape(len(split.labels), -1)[:, 0] >= 0
    if not labelled.any():
        raise TorchcapsError("None of these images has a label, so nothing can be right or wrong.")
    found = [(probabilities(o), b.labels) for b, o in outputs(model, split[labelled])]
    return torch.cat([p for p, _ in found]), torch.cat([y for _, y in found])


def confusion(claimed: Tensor, labels: Tensor) -> np.ndarray:
    """How often each class (row) was taken for each other. claimed [N,Y], labels [N] -> [Y,Y]"""
    classes = claimed.shape[1]
    cells = labels * classes + claimed.argmax(-1)
    return torch.bincount(cells, minlength=classes**2).reshape(classes, classes).cpu().numpy()


@register_measure("accuracy", ("accuracy", "exact_match"))
@dataclass
class Accuracy(Measure):
    """Accuracy; where several objects overlap, also whether all of them and no other were found."""

    single_labels = False

    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        return accuracy(model, split)


@register_measure("train", ("train_accuracy",))
@dataclass
class Training(Measure):
    """Accuracy on training images as training sees them before any augmentation."""

    single_labels = False
    images: int = 10_000
    """How many, evenly over the training split."""

    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        total = len(data.train)
        device = data.train.images.device
        rows = torch.linspace(0, total - 1, min(self.images, total), device=device).round().long()
        parts = [data.training(r, r) for r in rows.split(500)]
        images = torch.cat([(p.images * 255).round().byte() for p in parts])
        seen = Split(images, torch.cat([p.labels for p in parts]))
        return {"train_accuracy": accuracy(model, seen)["accuracy"]}


@register_measure("mirrored", ("mirrored_accuracy",))
@dataclass
class Mirrored(Measure):
    """Accuracy of an image and its mirror together: the mean of what both claim."""

    def score(self, model: CapsuleModel, data: Dataset, split: Split) -> dict[str, float]:
        claimed, labels = claims(model, split)
        mirrored, _ = claims(model, replace(split, images=split.images.flip(3)))
        agreed = (claimed + mirrored).argmax(-1) == labels
        return {"mirrored_accuracy": float(agreed.float().mean())}
