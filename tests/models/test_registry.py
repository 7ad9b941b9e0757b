"""Every model in the registry: forward, gradients, saving and loading, compiling."""

from dataclasses import replace

import pytest
import torch

import torchcaps
from tests.conftest import TINY_CAPSNET, TINY_CONVNET
from torchcaps.analysis.traversal import traverse
from torchcaps.data import Split
from torchcaps.errors import TorchcapsError
from torchcaps.metrics.compactness import compactness
from torchcaps.metrics.robustness import accuracy_under
from torchcaps.models.base import mask_capsules
from torchcaps.models.registry import build, model_config


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
        "capsule-head": {"num_types": 2, "pose_dim": 4},
        "plain-head": {"hidden": 8},
        "sr-capsnet": {"num_types": 2, "pose_dim": 4, "channels": 4},
        "mcae": {"width": 8, "depth": 1, "num_types": 4, "pose_dim": 4, "decoder_pose_dim": 4},
        "ge-capsnet": {"num_types": (2,), "channels": 4},
        "view-capsnet": {"channels": (4,) * 7, "pose_dim": 2, "dropout": 0.0},
        "sparse": {
            "channels": 8,
            "num_types": 2,
            "pose_dim": 4,
            "latent_pose_dim": 4,
            "hidden": (16,),
        },
        "autoencoder": {"channels": 8, "units": 6, "hidden": (16,)},
        "generative": {
            "num_caps": (3, 5),
            "template_size": 5,
            "channels": 3,
            "width": 8,
            "heads": 2,
            "depth": 1,
        },
        "vae": {"hidden": (8,), "units": 3},
        "scae": {
            "num_caps": (3, 5),
            "template_size": 5,
            "channels": 4,
            "padding": 1,
            "features": 2,
            "width": 4,
            "depth": 1,
            "code": 6,
        },
    }
    extra = dict(overrides[family])
    if getattr(model_config(name), "frames", 1) > 1:
        extra |= {"frames": 2, "test_frames": 3}
    if name == "inverted-small":
        extra["primary_stride"] = 1  # 24 pixels are too few for its own
    if family == "convnet":
        config = model_config(name)
        extra = {"channels": tuple(8 for _ in config.channels), "kernel_size": 5}
    return torchcaps.create_model(name, in_channels=1, image_size=24, num_classes=7, **extra)


EVERY = torchcaps.list_models(every=True)
MODELS = [name for name in EVERY if not name.startswith("constellation")]
"""Those that take images; constellations have tests of their own."""
LISTED = set(torchcaps.list_models())
MODEL_PARAMETERS = [
    pytest.param(name, marks=[] if name in LISTED else [pytest.mark.slow]) for name in MODELS
]
"""All of them; variants that fill rows of tables are slow tests."""


@pytest.mark.parametrize("name", MODEL_PARAMETERS)
def test_no_image_gives_empty_outputs(name):
    model, nothing = small(name).eval(), torch.zeros(0, 1, 24, 24)
    assert all(len(layer.poses) == 0 for layer in model(nothing).layers if layer.poses is not None)
    assert all(len(vectors) == 0 for vectors in model.representations(nothing).values())
    if "logits" in model.provides:
        assert model.predict(nothing) == []


@pytest.mark.parametrize("name", MODEL_PARAMETERS)
def test_forward_gives_every_layer_by_name(name):
    model = small(name)
    images = torch.rand(3, 1, 24, 24)
    output = model(images, coupling=True)
    if "logits" in model.provides:
        assert output.logits.shape == (3, 7) and output.features is not None
    else:
        assert output.logits is None
    drawn = bool(model.provides & {"reconstruct", "inpaint"})
    assert (output.reconstruction is not None) == drawn
    if drawn:
        assert output.reconstruction.shape == images.shape
        assert model.encode(images).reconstruction is None
    for below, layer in zip(output.layers[:-1], output.layers[1:], strict=True):
        assert layer.coupling is not None, "asked for, so it is there"
        sums = layer.coupling.sum(-1)
        if model.coupling_sums == "at most one":
            assert (sums <= 1 + 1e-5).all() and (sums > 0).all()
        elif model.coupling_sums == "any":
            assert (sums > 0).any() and sums.isfinite().all()
        elif model.coupling_sums == "one over windows" and sums.dim() == 4:  # test_em.py
            assert (sums <= 1 + 1e-5).all() and sums.sum() > 0
        else:
            torch.testing.assert_close(sums, torch.ones_like(sums))
        children = below.poses.shape[-2] if layer.coupling.dim() == 4 else None
        assert children is None or layer.coupling.shape[2] == children
    assert all(layer.coupling is None for layer in model(images).layers)
    if name.startswith(("capsnet", "aff")):
        assert output.primary.dim() == 5 and output.capsules.shape[:2] == (3, 7)
        assert output.coupling.shape == (3, output.primary.shape[1:4].numel(), 7)
        lengths = output.capsules.norm(dim=-1)
        torch.testing.assert_close(output.scores, lengths, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", [n for n in MODELS if model_config(n).oblong])
def test_oblong_images(name):
    made = small(name).config
    model = build(replace(made, image_size=20, image_width=28)).eval()
    images = torch.rand(2, 1, 20, 28)
    output = model(images, coupling=True)
    assert output.logits is None or output.logits.shape == (2, 7)
    assert output.reconstruction is None or output.reconstruction.shape == images.shape
    with pytest.raises(TorchcapsError, match="1x20x28.*got 1x28x20"):
        model(images.mT)


@pytest.mark.parametrize("name", MODEL_PARAMETERS)
def test_representations_are_vectors(name):
    model, images = small(name).eval(), torch.rand(3, 1, 24, 24)
    found = model.representations(images)
    assert found and all(v.shape[0] == 3 and v.dim() == 2 for v in found.values())


@pytest.mark.parametrize("name", MODEL_PARAMETERS)
def test_a_wrong_image_size_is_an_error_that_names_both(name):
    model = small(name)
    for shape in ((2, 1, 24, 36), (2, 1, 36, 24), (2, 1, 48, 48), (2, 3, 24, 24)):
        sizes = "x".join(map(str, shape[1:]))
        with pytest.raises(TorchcapsError, match=f"made for images of 1x24x24.*got {sizes}"):
            model(torch.rand(shape))


@pytest.mark.parametrize("name", MODEL_PARAMETERS)
def test_every_parameter_gets_a_gradient(name):
    model = small(name)
    output = model(torch.rand(3, 1, 24, 24))
    loss = 0 if output.logits is None else output.logits.square().sum()
    if "bound" in model.provides:
        loss = sum(term.sum() for term in model.bound(torch.rand(3, 1, 24, 24)).terms.values())
    elif output.reconstruction is not None:
        loss = loss + output.reconstruction.sum()
    loss.backward()
    for parameter_name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter_name.startswith("masked_"):  # of patches that were removed: none were
            continue
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize("name", MODEL_PARAMETERS)
def test_every_model_can_be_looked_into(name):
    """Compactness and accuracy under a transformation take any of them that has classes."""
    model, images = small(name), torch.rand(3, 1, 24, 24)
    scores = compactness(model, images, "rotation", (-10, 0, 10))
    assert scores.shape == (3,) and (scores >= -1e-9).all()
    split = Split((255 * images).byte(), torch.tensor([1, 4, 6]))
    if "logits" not in model.provides:
        with pytest.raises(TorchcapsError, match="no classes"):
            accuracy_under(model, split, "shift_x", (0.0,))
        return
    grid, accuracy = accuracy_under(model, split, "shift_x", (0.0, 2.0))
    assert grid.shape == accuracy.shape and ((accuracy >= 0) & (accuracy <= 1)).all()
    if {"decode", "logits"} <= model.provides:
        assert traverse(model, images[0], 0, (-0.1, 0.1)).shape == (1, 2, 1, 24, 24)


@pytest.mark.parametrize("name", MODEL_PARAMETERS)
def test_save_and_load(name, tmp_path):
    model = small(name).eval()
    model.save_pretrained(tmp_path)
    again = torchcaps.load(tmp_path)
    assert type(model).from_pretrained(tmp_path).config == model.config
    images = torch.rand(2, 1, 24, 24)
    assert again.config == model.config
    one, two = (m.representations(images) for m in (model, again))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not again.training and not type(model).from_pretrained(tmp_path).training
    assert not list(tmp_path.glob("*.bin")) and (tmp_path / "model.safetensors").exists()
    assert f"{model.num_parameters:,} parameters" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("name", MODEL_PARAMETERS)
def test_compiles_in_one_graph(name):
    torch.compiler.reset()
    model = small(name).eval()
    images = torch.rand(2, 1, 24, 24)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    found, wanted = compiled(images), model(images)
    for one, two in zip(found.layers, wanted.layers, strict=True):
        torch.testing.assert_close(one, two)
    torch.testing.assert_close(found.logits, wanted.logits)


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
    assert loose(images).scores.max() > 1
    assert torchcaps.create_model("capsnet", reconstruction="none", **base).decoder is None
    plain = torchcaps.create_model("capsnet", reconstruction="plain", **base)
    poses = plain(images).capsules
    drawn = [plain.decode(poses, torch.tensor([k, k])) for k in (0, 1)]
    assert torch.equal(*drawn)
    conditional = torchcaps.create_model("capsnet", **base)
    drawn = [conditional.decode(poses, torch.tensor([k, k])) for k in (0, 1)]
    assert not torch.equal(*drawn)
    likeliest = conditional(images)
    again = conditional.decode(likeliest.capsules, likeliest.logits.argmax(-1))
    assert torch.equal(again, likeliest.reconstruction)


@pytest.mark.parametrize("routing", ["dynamic", "none", "inverted", "em", "self", "vb"])
def test_capsnet_takes_every_routing(routing):
    fields = {**TINY_CAPSNET, "image_size": 24, "class_pose_dim": 4}
    output = torchcaps.create_model("capsnet", routing=routing, **fields)(torch.rand(2, 1, 24, 24))
    assert output.logits.shape == (2, 10) and output.scores.isfinite().all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torchcaps.create_model("capsnt"), "Did you mean 'capsnet'"),
        (lambda: torchcaps.create_model("capsnet", rooting="x"), "Did you mean 'routing'"),
        (lambda: torchcaps.create_model("capsnet", routing="dynamc"), "Did you mean 'dynamic'"),
        (lambda: torchcaps.create_model("capsnet", transform="x"), "not one of own, types, shared"),
        (lambda: torchcaps.create_model("capsnet", num_iters="3"), "not of type int"),
        (lambda: torchcaps.create_model("capsnet", image_size=12), "too few"),
        (lambda: torchcaps.create_model("convnet-fc", image_size=9), "too few"),
        (lambda: torchcaps.create_model("convnet-r", squash=True), "conditional"),
        (lambda: torchcaps.create_model("convnet-avg").decode(*torch.rand(2, 1)), "no decoder"),
        (lambda: torchcaps.load("/no/such/thing"), "not a run, a saved model"),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(make, words):
    with pytest.raises(TorchcapsError, match=words):
        make()


def test_tiny_convnet_sizes():
    model = torchcaps.create_model("convnet-avg", **TINY_CONVNET)
    assert model(torch.rand(1, 1, 28, 28)).logits.shape == (1, 10)


@pytest.mark.parametrize("backbone", ["conv", "norm", "resnet"])
def test_capsnet_normalizes_color_images_as_its_baselines(backbone):
    fields = {**TINY_CAPSNET, "kernel_size": 3, "backbone": backbone, "image_size": 16}
    torch.manual_seed(0)
    color = torchcaps.create_model("capsnet", in_channels=3, **fields).eval()
    bare = torchcaps.create_model("capsnet", in_channels=3, normalize="none", **fields).eval()
    bare.load_state_dict(color.state_dict())
    images = torch.rand(2, 3, 16, 16)
    normalized = torchcaps.create_model("cnn", in_channels=3).normalize(images)
    torch.testing.assert_close(color(images).logits, bare(normalized).logits)
    assert not torch.allclose(color(images).logits, bare(images).logits)
    gray = [torchcaps.create_model("capsnet", normalize=n, **fields) for n in ("color", "none")]
    gray[1].load_state_dict(gray[0].state_dict())
    one, two = (m.eval()(images[:, :1]).logits for m in gray)
    assert torch.equal(one, two)
