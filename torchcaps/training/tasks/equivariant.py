"""Classification with poses tied over the images of a class, or equivariant to known angles.

The poses are those of the labeled class's capsule; a head without capsules has its hidden layer in
their place. The first half of a pose is rotated back by the angle of its image, after which it must
be the same in any two images of the class in a batch; the other half is free.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from torchcaps.data import Batch, Dataset
from torchcaps.errors import TorchcapsError
from torchcaps.losses import equivariance_loss
from torchcaps.metrics.pose_angle import class_poses
from torchcaps.models import Model, Output
from torchcaps.training.task import register_task
from torchcaps.training.tasks.classify import Classify, ClassifyTask
from torchcaps.typed import Between


@dataclass(frozen=True, kw_only=True)
class Equivariant(Classify):
    poses: Literal["tied", "turn", "rotation"] = "tied"
    """What the poses of a class follow: nothing (tied), the object's turn before the camera, or the
    rotation of the image in its plane (data.augment rotate)."""
    pose_weight: Annotated[float, Between(0, 1e6)] = 1.0
    """The weight of the loss on poses."""


@register_task("equivariant", Equivariant)
class EquivariantTask(ClassifyTask):
    example = "capsule-head"

    def __init__(self, model: Model, config: Equivariant):
        super().__init__(model, config)
        self.poses, self.pose_weight = config.poses, config.pose_weight

    def check(self, data: Dataset, cutmix: float) -> None:
        super().check(data, cutmix)
        if data.train.labels.ndim != 1 or cutmix:
            raise TorchcapsError("The task equivariant needs one label an image.")
        if self.reconstructs:
            raise TorchcapsError(
                "The task equivariant does not reconstruct: add --task.reconstruction 0."
            )
        if self.poses == "turn" and "turn" not in data.train.factors:
            raise TorchcapsError(
                "task.poses=turn needs the angles by which objects are turned, as fruits-views has "
                f"them; {data.name} has none."
            )

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        output = self.model.encode(batch.images, coupling=True)
        classification = self.classification(output, batch)
        poses = poses_of(self.model, output, batch.labels)
        half = poses[:, : poses.shape[1] // 4 * 2]
        loss = equivariance_loss(half, self._angles(batch), batch.labels)
        total = classification + self.pose_weight * loss
        return {"loss": total, "classification": classification, "poses": loss}

    def _angles(self, batch: Batch) -> Tensor:
        """The angle that the pose of each image follows, in radians. -> [B]"""
        if self.poses == "tied":
            return torch.zeros_like(batch.labels, dtype=torch.float32)
        angles = batch.turn if self.poses == "turn" else batch.rotation
        if angles is None:
            raise TorchcapsError("task.poses=rotation needs --data.augment rotate:180.")
        return angles


def poses_of(model: Model, output: Output, labels: Tensor) -> Tensor:
    """Poses of the labeled classes, or without capsules the hidden layer. labels [B] -> [B,E]"""
    if output.layers:
        return class_poses(output, labels)
    hidden = getattr(model, "hidden", None)
    if hidden is None:
        raise TorchcapsError(
            "The task equivariant needs capsules or a head with a hidden layer, such as vote-head; "
            f"a {model.config.family} has neither."
        )
    return hidden(output)
