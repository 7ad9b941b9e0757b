"""The in-plane angle in class poses."""

import math
from types import SimpleNamespace

import pytest
import torch

import torchcaps
from torchcaps.data import Dataset, Split
from torchcaps.errors import TorchcapsError
from torchcaps.layers import Capsules
from torchcaps.metrics.pose_angle import PoseAngle, angle_error, class_poses, ridge, rotated
from torchcaps.models.base import Output


def wedges(count, seed=0):
    """Images of two classes whose bright corner shows their rotation."""
    images = torch.full((count, 1, 16, 16), 40, dtype=torch.uint8)
    images[:, :, 4:7, 9:12] = 255
    labels = torch.arange(count) % 2
    images[labels == 1, :, 9:12, 9:12] = 160
    return Split(images, labels)


class Moments(torch.nn.Module):
    """Class poses that are the center of mass, times a sign of the class."""

    config = SimpleNamespace(family="moments")

    def encode(self, images, coupling=False):
        line = torch.linspace(-1, 1, images.shape[2])
        light = images[:, 0] - 40 / 255
        place = torch.stack([(light * line).sum((1, 2)), (light * line[:, None]).sum((1, 2))], 1)
        poses = torch.stack([place, -place], 1)
        return Output(poses[..., 0], layers=(Capsules(poses[:, :, None]), Capsules(poses)))


def test_poses_that_turn_with_the_image_have_its_angle():
    data = Dataset("wedges", wedges(40), wedges(20), wedges(20), ("a", "b"))
    metric = PoseAngle()
    metric.check(Moments(), data)
    metric.learn(Moments(), data)
    numbers = metric.score(Moments(), data, data.test)
    assert numbers["angle_pose"] < 6 < numbers["angle_random"] < 80


def test_poses_that_ignore_the_image_are_chance():
    class Fixed(Moments):
        def encode(self, images, coupling=False):
            output = super().encode(images)
            poses = torch.ones_like(output.layers[1].poses)
            return Output(poses[..., 0], layers=(Capsules(poses[:, :, None]), Capsules(poses)))

    data = Dataset("wedges", wedges(200), wedges(20), wedges(200), ("a", "b"))
    metric = PoseAngle(copies=1)
    metric.learn(Fixed(), data)
    assert metric.score(Fixed(), data, data.test)["angle_pose"] == pytest.approx(90, abs=12)


def test_angles_are_of_the_rotation():
    split, angles = rotated(wedges(64), 3)
    output = Moments().encode(split.images / 255)
    upright = Moments().encode(wedges(1).images / 255).layers[1].poses[0, 0]
    pose = output.layers[1].poses[::2, 0]  # of the first class
    turn = torch.atan2(pose[:, 1], pose[:, 0]) - torch.atan2(upright[1], upright[0])
    away = torch.stack([turn.cos(), turn.sin()], 1)
    errors = [angle_error(away, sign * angles[::2]).mean().item() for sign in (1, -1)]
    assert min(errors) < 6 and max(errors) > 60
    assert not torch.equal(rotated(wedges(64), 4)[1], angles)


def test_a_ridge_recovers_a_linear_map():
    angles = torch.rand(50, dtype=torch.double) * 2 * math.pi
    inputs = torch.stack([angles.cos() * 3 + 1, angles.sin() * 2, torch.ones(50)], 1)
    predicted = inputs @ ridge(inputs, angles, 1e-9)
    assert angle_error(predicted, angles).max() < 1e-4
    assert angle_error(torch.tensor([[-1.0, 0.0]]), torch.tensor([0.0])).item() == pytest.approx(
        180
    )


def test_self_routing_has_the_mean_of_what_children_send():
    poses = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]]]])  # [B=1,H=2,T=1,D=2]
    children = Capsules(poses, torch.tensor([[[0.5], [1.0]]]))
    coupling = torch.tensor([[[0.2, 0.8], [0.3, 0.7]]])
    output = Output(torch.zeros(1, 2), layers=(children, Capsules(None, None, coupling)))
    pose = class_poses(output, torch.tensor([0]))
    torch.testing.assert_close(pose, torch.tensor([[0.1 / 0.4, 0.3 / 0.4]]))


def test_a_head_reads_the_angle(tmp_path, monkeypatch):
    from torchcaps.models.photos import features

    monkeypatch.setattr(features, "cache_folder", lambda: tmp_path)
    images = torch.randint(0, 256, (12, 3, 64, 64), dtype=torch.uint8)
    split = Split(images, torch.arange(12) % 3)
    data = Dataset("noise", split, split, split, ("a", "b", "c"))
    for name, takes in (("capsule-head", True), ("vote-head", False)):
        model = torchcaps.create_model(name, image_size=64, num_classes=3).eval()
        metric = PoseAngle(copies=1)
        if not takes:
            with pytest.raises(TorchcapsError, match="needs class capsules"):
                metric.check(model, data)
            continue
        metric.check(model, data)
        metric.learn(model, data)
        assert 0 <= metric.score(model, data, split)["angle_pose"] <= 180
