"""Every model in the registry: forward, gradients, saving and loading, compiling."""

import pytest
import torch

import torchcaps
from tests.conftest import TINY_CAPSNET, TINY_CONVNET
from torchcaps.analysis import accuracy_under, compactness, traverse
from torchcaps.data import Split
from torchcaps.errors import TorchcapsError
from torchcaps.models.base import mask_capsules
from torchcaps.models.registry import model_config


def needs_timm():
    """torchvision, which timm imports, raises beside a torch that it was not built for."""
    try:
        import timm  # noqa: F401  # pyright: ignore
    except (ImportError, RuntimeError):
        pytest.skip("timm is not here")


def small(name):
    """The same model in a width that takes no time."""
    family = model_config(name).family
    if family == "timm":
        needs_timm()
    overrides = {
        "timm": {},
        "capsnet": TINY_CAPSNET,
        "convnet": {},
        "convnet-r": {"channels": 8, "hidden": (16,)},
        "convnet-modern": {"channels": (4,) * 7, "dropout": 0.0},
        "em-capsnet": {"channels": 4, "num_types": (2, 3, 2), "num_iters": 2},
        "inverted": {"channels": 4, "num_types": 2, "pose_dim": 4},
        "cnn": {"channels": 4, "hidden": 8},
        "sr-capsnet": {"num_types": 2, "dim": 4, "channels": 4},
        "mcae": {"width": 8, "depth": 1, "num_caps": 4, "dim": 4, "decoder_dim": 4},
        "view-capsnet": {"channels": (4,) * 7, "dim": 2, "dropout": 0.0},
    }
    extra = dict(overrides[family])
    if family == "convnet":
        config = model_config(name)
        extra = {"channels": tuple(8 for _ in config.channels), "kernel_size": 5}
    return torchcaps.create_model(name, in_channels=1, image_size=24, num_classes=7, **extra)


@pytest.mark.parametrize("name", torchcaps.list_models())
def test_forward_gives_every_intermediate(name):
    model = small(name)
    images, labels = torch.rand(3, 1, 24, 24), torch.tensor([1, 4, 6])
    output = model(images, labels, coupling=True)
    if name == "mcae-pretrain":  # it has no classes yet
        assert output.reconstruction.shape == images.shape and output.hidden.any()
        return
    assert output.logits.shape == (3, 7) and output.features is not None
    if model.decoder is not None:
        assert output.reconstruction.shape == images.shape
        assert output.capsules.shape[:2] == (3, 7)
        assert model(images, reconstruct=False).reconstruction is None
    if name.startswith(("capsnet", "aff")):
        assert output.coupling.shape == (3, output.primary.shape[1], 7)
        torch.testing.assert_close(
            output.lengths, output.capsules.norm(dim=-1), atol=1e-5, rtol=1e-4
        )
        assert model(images).coupling is None


@pytest.mark.parametrize("name", torchcaps.list_models())
def test_every_parameter_gets_a_gradient(name):
    model = small(name)
    output = model(torch.rand(3, 1, 24, 24), torch.tensor([1, 4, 6]))
    loss = output.logits.square().sum()
    if output.reconstruction is not None:
        loss = loss + output.reconstruction.sum()
    loss.backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize("name", torchcaps.list_models())
def test_every_model_can_be_looked_into(name):
    """Compactness and accuracy under a transformation take any of them."""
    model, images = small(name), torch.rand(3, 1, 24, 24)
    scores = compactness(model, images, "rotation", (-10, 0, 10))
    assert scores.shape == (3,) and (scores >= -1e-9).all()
    split = Split((255 * images).byte(), torch.tensor([1, 4, 6]))
    grid, accuracy = accuracy_under(model, split, "shift_x", (0.0, 2.0))
    assert grid.shape == accuracy.shape and ((accuracy >= 0) & (accuracy <= 1)).all()
    if model.decoder is not None and name != "mcae-pretrain":
        assert traverse(model, images[0], 0, (-0.1, 0.1)).shape == (1, 2, 1, 24, 24)


@pytest.mark.parametrize("name", torchcaps.list_models())
def test_save_and_load(name, tmp_path):
    model = small(name).eval()
    model.save_pretrained(tmp_path)
    again = torchcaps.load(tmp_path)
    assert type(model).from_pretrained(tmp_path).config == model.config
    images = torch.rand(2, 1, 24, 24)
    assert again.config == model.config
    assert torch.equal(model(images).logits, again(images).logits)
    assert not list(tmp_path.glob("*.bin")) and (tmp_path / "model.safetensors").exists()
    assert f"{model.num_parameters:,} parameters" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("name", torchcaps.list_models())
def test_compiles_in_one_graph(name):
    torch.compiler.reset()
    model = small(name)
    images, labels = torch.rand(2, 1, 24, 24), torch.tensor([0, 3])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images, labels).logits, model(images, labels).logits)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("convnet-fc", 35.4),
        ("capsnet", 13.5),
        ("capsnet-nor", 13.5),
        ("aff-capsnet-dr", 7.5),
        ("aff-capsnet", 7.5),
        ("convnet-avg", 5.3),
        ("convnet-modern", 1.7),
    ],
)
def test_parameter_counts_of_table_1(name, millions):
    """On 40x40. The paper cuts 7.58M to 7.5M, so the last digit may differ by one."""
    with torch.device("meta"):
        model = torchcaps.create_model(name, image_size=40)
    assert model.num_parameters / 1e6 == pytest.approx(millions, abs=0.1)


@pytest.mark.parametrize(
    ("name", "kernel_size", "millions"),
    [
        ("capsnet", 3, 16.1), ("capsnet", 5, 14.4), ("capsnet", 7, 13.5), ("capsnet", 11, 14.3),
        ("convnet-fc", 3, 49.5), ("convnet-fc", 7, 25.2), ("convnet-fc", 9, 18.8),
        ("convnet-fc", 11, 16.19), ("convnet-avg", 3, 0.59), ("convnet-avg", 5, 1.70),
        ("convnet-avg", 7, 3.23), ("convnet-avg", 11, 7.96),
    ],
)  # fmt: skip
def test_parameter_counts_of_table_3(name, kernel_size, millions):
    with torch.device("meta"):
        model = torchcaps.create_model(name, image_size=40, kernel_size=kernel_size)
    assert model.num_parameters / 1e6 == pytest.approx(millions, abs=0.06)


def test_convnet_fc_lk_is_no_larger_than_capsnet_on_multimnist():
    with torch.device("meta"):
        lk, caps = (torchcaps.create_model(n, image_size=36) for n in ("convnet-fc-lk", "capsnet"))
    assert lk.num_parameters <= caps.num_parameters


def test_masking_keeps_the_labelled_capsule_alone():
    capsules = torch.randn(2, 3, 4)
    masked = mask_capsules(capsules, torch.tensor([2, -1])).reshape(2, 3, 4)
    assert torch.equal(masked[0, 2], capsules[0, 2]) and masked[0, :2].abs().sum() == 0
    assert masked[1].abs().sum() == 0
    both = mask_capsules(capsules, torch.tensor([[0, 1], [2, -1]])).reshape(2, 2, 3, 4)
    assert torch.equal(both[0, 1, 1], capsules[0, 1]) and both[1, 1].abs().sum() == 0


def test_the_switches_change_what_they_say():
    images = torch.rand(2, 1, 28, 28)
    base = {**TINY_CAPSNET, "image_size": 28}
    loose = torchcaps.create_model("capsnet", squash=False, **base)
    with torch.no_grad():
        loose.classes.weight.mul_(100)
    assert loose(images).lengths.max() > 1
    assert torchcaps.create_model("capsnet", reconstruction="none", **base).decoder is None
    plain = torchcaps.create_model("capsnet", reconstruction="plain", **base)
    drawn = [plain(images, torch.tensor([k, k])).reconstruction for k in (0, 1)]
    assert torch.equal(*drawn)
    conditional = torchcaps.create_model("capsnet", **base)
    drawn = [conditional(images, torch.tensor([k, k])).reconstruction for k in (0, 1)]
    assert not torch.equal(*drawn)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torchcaps.create_model("capsnt"), "Did you mean 'capsnet'"),
        (lambda: torchcaps.create_model("capsnet", rooting="x"), "Did you mean 'routing'"),
        (lambda: torchcaps.create_model("capsnet", routing="dynamc"), "none of dynamic, none"),
        (lambda: torchcaps.create_model("capsnet", num_iters="3"), "not of type int"),
        (lambda: torchcaps.create_model("capsnet", image_size=12), "too few"),
        (lambda: torchcaps.create_model("convnet-fc", image_size=9), "too few"),
        (lambda: torchcaps.create_model("convnet-r", squash=True), "conditional"),
        (lambda: torchcaps.create_model("convnet-avg").decode(*torch.rand(2, 1)), "no decoder"),
        (lambda: torchcaps.load("/no/such/thing"), "neither a run"),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(make, words):
    with pytest.raises(TorchcapsError, match=words):
        make()


def test_tiny_convnet_sizes():
    model = torchcaps.create_model("convnet-avg", **TINY_CONVNET)
    assert model(torch.rand(1, 1, 28, 28)).logits.shape == (1, 10)
