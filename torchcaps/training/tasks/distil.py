"""Classify as a teacher does: the initial weights, which also see the mirrored image.

What a network says of an image and of its mirror, taken together, is right more often than what it
says of the image alone, and costs twice as much. Here a frozen copy of the weights that a run
begins with says both, and the network learns to say the same of one image.
"""

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from torchcaps.data import Batch, Dataset
from torchcaps.errors import TorchcapsError
from torchcaps.models import Model, Output
from torchcaps.training.task import register_task
from torchcaps.training.tasks.classify import Classify, ClassifyTask


@dataclass(frozen=True, kw_only=True)
class Distil(Classify):
    taught: float = 0.9
    """The share of the loss that asks for the teacher's answer; the labels have the rest."""
    mirror: bool = True
    """Show the teacher each image's mirror, too: good for photographs, not for digits."""


@register_task("distil", Distil)
class DistilTask(ClassifyTask):
    needs_start = True

    def __init__(self, model: Model, config: Distil):
        super().__init__(model, config)
        self.taught, self.mirror = config.taught, config.mirror
        self.teacher = deepcopy(model).requires_grad_(False)

    def check(self, data: Dataset, cutmix: float) -> None:
        super().check(data, cutmix)
        if not 0 < self.taught <= 1:
            raise TorchcapsError(f"task.taught must be above 0 and at most 1; it is {self.taught}.")

    def begin(self, data: Dataset) -> None:
        super().begin(data)
        self.teacher.load_state_dict(self.model.state_dict())

    def train(self, mode: bool = True) -> "DistilTask":
        super().train(mode)
        self.teacher.eval()  # its statistics are as they were
        return self

    @torch.no_grad()
    def teacher_probabilities(self, images: Tensor) -> Tensor:
        """The teacher's answer, as probabilities [B,Y]."""
        answers = [self._answer(images)]
        if self.mirror:
            answers.append(self._answer(images.flip(3)))
        return torch.stack(answers).softmax(-1).mean(0)

    def _answer(self, images: Tensor) -> Tensor:
        logits = self.teacher.encode(images).logits
        assert logits is not None
        return logits.float()

    def classification(self, output: Output, batch: Batch) -> Tensor:
        loss = super().classification(output, batch)
        if not self.training:
            return loss
        assert output.logits is not None
        taught = F.cross_entropy(output.logits.float(), self.teacher_probabilities(batch.images))
        return torch.lerp(loss.float(), taught, self.taught)
