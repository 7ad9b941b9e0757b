"""Poses that are tied over the images of a class, or follow a known angle."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchcaps.data import Batch, Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.losses import equivariance_loss
from torchcaps.metrics.pose_angle import class_poses
from torchcaps.models.photos.backbone import BACKBONES, Source
from torchcaps.models.registry import create_model
from torchcaps.training.tasks import Equivariant, make_task
from torchcaps.training.tasks.equivariant import poses_of


@pytest.fixture(autouse=True)
def tiny():
    BACKBONES["tiny"] = Source(lambda: nn.Conv2d(3, 6, 8, 8), 6, (0.5,) * 3, (0.5,) * 3)
    yield
    del BACKBONES["tiny"]


def head(name, **fields):
    torch.manual_seed(0)
    fields = {"num_types": 2} if name == "capsule-head" else {"hidden": 10, **fields}
    return create_model(
        name, backbone="tiny", image_size=32, in_channels=3, num_classes=3, components=0, **fields
    )


def batch(**angles):
    labels = torch.tensor([0, 1, 0, 2, 1, 0])
    return Batch(torch.rand(6, 3, 32, 32), labels, **angles)


def test_the_loss_is_of_pairs_of_one_class():
    torch.manual_seed(0)
    poses, angles = torch.randn(7, 6), 6 * torch.rand(7)
    labels = torch.tensor([0, 1, 0, 2, 1, 0, 3])
    upright = torch.view_as_complex(poses.unflatten(1, (3, 2))) * torch.exp(-1j * angles)[:, None]
    upright = torch.view_as_real(upright).flatten(1)
    pairs = [(i, j) for i in range(7) for j in range(i) if labels[i] == labels[j]]
    assert len(pairs) == 4
    wanted = sum(1 - F.cosine_similarity(upright[i], upright[j], dim=0) for i, j in pairs) / 4
    torch.testing.assert_close(equivariance_loss(poses, angles, labels), wanted)
    assert equivariance_loss(poses, angles, torch.arange(7)) == 0


@pytest.mark.parametrize("name", ["capsule-head", "vote-head", "mlp-head"])
@pytest.mark.parametrize("kind", ["tied", "turn", "rotation"])
def test_the_loss_is_added_and_teaches_the_head(name, kind):
    angles = torch.linspace(0, 3, 6)
    images = batch(turn=angles, rotation=-angles)
    fields = {"loss": "cross_entropy", "poses": kind}
    task = make_task(head(name), Equivariant(**fields, pose_weight=0.5))
    parts = task(images)
    output = task.model.encode(images.images, coupling=True)
    poses = poses_of(task.model, output, images.labels)
    half = poses[:, : {"capsule-head": 8}.get(name, 4)]  # pairs of entries, half of them at most
    followed = {"tied": 0 * angles, "turn": angles, "rotation": -angles}[kind]
    wanted = equivariance_loss(half, followed, images.labels)
    torch.testing.assert_close(parts["poses"], wanted)
    torch.testing.assert_close(
        parts["loss"], F.cross_entropy(output.logits, images.labels) + 0.5 * wanted
    )
    layer = task.model.primary if name == "capsule-head" else task.model.head[0]
    (gradient,) = torch.autograd.grad(parts["poses"], layer.weight)
    assert gradient.abs().sum() > 0


def test_poses_are_those_of_the_label_or_the_hidden_layer():
    images = batch()
    capsules, vote = head("capsule-head"), head("vote-head")
    output = capsules.encode(images.images, coupling=True)
    torch.testing.assert_close(
        poses_of(capsules, output, images.labels), class_poses(output, images.labels)
    )
    output = vote.encode(images.images)
    by_position = vote.head[0](vote.seen(output.features).permute(0, 2, 3, 1))
    torch.testing.assert_close(poses_of(vote, output, images.labels), by_position.mean((1, 2)))


def dataset(labels, **factors):
    split = Split(torch.zeros(6, 3, 32, 32, dtype=torch.uint8), labels, factors)
    return Dataset("photos", split, split, split, ("a", "b", "c"))


def test_what_has_no_angles_or_poses_is_refused():
    labels = torch.arange(6) % 3
    turned = make_task(head("capsule-head"), Equivariant(poses="turn"))
    turned.check(dataset(labels, turn=torch.rand(6)), 0.0)
    with pytest.raises(TorchcapsError, match="photos has none"):
        turned.check(dataset(labels), 0.0)
    with pytest.raises(TorchcapsError, match="one label"):
        turned.check(dataset(labels[:, None].expand(-1, 2), turn=torch.rand(6)), 0.0)
    with pytest.raises(TorchcapsError, match="rotate:180"):
        make_task(head("capsule-head"), Equivariant(poses="rotation"))(batch())
    with pytest.raises(TorchcapsError, match="hidden layer"):
        make_task(head("linear-head"), Equivariant())(batch())
    convnet = create_model("convnet-avg", image_size=32, in_channels=3, num_classes=3)
    with pytest.raises(TorchcapsError, match="has neither"):
        make_task(convnet, Equivariant())(batch())


def test_a_batch_has_the_angles_of_its_images():
    angles = torch.linspace(0, math.pi, 6)
    split = dataset(torch.arange(6) % 3, turn=angles).train
    assert torch.equal(split.batch(slice(1, 4)).turn, angles[1:4])
    assert split.batch(slice(1, 4)).rotation is None
    again = Batch(*replace(split.batch(slice(None)), rotation=-angles).tensors())[2:5]
    assert torch.equal(again.turn, angles[2:5]) and torch.equal(again.rotation, -angles[2:5])
