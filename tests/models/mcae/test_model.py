"""Nothing of a removed patch is read; patches go out and come back; stages share their weights."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import torchcaps
from torchcaps.errors import TorchcapsError
from torchcaps.models.mcae.decoder import CapsuleDecoder, ConvPatchDecoder
from torchcaps.models.mcae.patches import (
    Attention,
    from_patches,
    keep,
    put_back,
    to_patches,
    visible_rows,
)
from torchcaps.training.init_weights import init_weights

TINY = {
    "image_size": 12, "patch_size": 3, "width": 8, "depth": 2, "num_types": 4, "pose_dim": 4,
    "decoder_pose_dim": 4, "num_classes": 5,
}  # fmt: skip


def model(stage="pretrain", **fields):
    return torchcaps.create_model("mcae", **{**TINY, "stage": stage, **fields})


def drawn(made, images, ratio=0.5):
    """Which patches were removed, the capsules of the others, and what is drawn of all."""
    visible = made.length - round(ratio * made.length)
    rows = visible_rows(len(images), made.length, visible, images.device, made.training)
    output = made.encode(images, rows)
    last = output.layers[-1]
    return output.masked, last.poses, made.inpaint(last, rows)


def test_patches_come_back():
    images = torch.rand(2, 3, 12, 12)
    patches = to_patches(images, 3)
    assert patches.shape == (2, 16, 27)
    assert torch.equal(patches[1, 5], images[1, :, 3:6, 3:6].flatten())
    assert torch.equal(from_patches(patches, 3, 4), images)
    rows = torch.tensor([[0, 5, 7], [1, 2, 15]])
    kept = keep(patches, rows)
    assert torch.equal(kept[1, 2], patches[1, 15])
    whole = put_back(kept, rows, 16, torch.full((27,), 9.0))
    assert torch.equal(keep(whole, rows), kept) and int((whole == 9).all(-1).sum()) == 2 * 13


@pytest.fixture(autouse=True)
def small_timm(monkeypatch):
    """A timm of two networks, so that its place in the model is tested where it is not."""
    plain = SimpleNamespace(embed_dim=24, blocks=nn.Sequential(Attention(24), Attention(24)))
    turned = SimpleNamespace(embed_dim=24, blocks=plain.blocks, rope=object())
    known = {"plain": plain, "turned": turned}

    def create_model(name, num_classes):
        if name not in known:
            raise RuntimeError("Unknown model")
        return known[name]

    made = SimpleNamespace(create_model=create_model, list_models=lambda: list(known))
    monkeypatch.setitem(sys.modules, "timm", made)


def test_backbones_that_are_none_are_refused():
    for name, word in (
        ("resnet", "timm:NAME"),
        ("timm:x", "no network 'x'"),
        ("timm:turned", "plain"),
    ):
        with pytest.raises(TorchcapsError, match=word):
            model(backbone=name)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        {}, {"backbone": "vit"}, {"backbone": "timm:plain"}, {"decoder": "mlp"},
        {"decoder": "conv"}, {"decoder_shared": True, "decoder_depth": 2},
        {"routing": "em"}, {"routing": "inverted"}, {"routing": "dynamic"},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("ratio", [0.5, 0.75])
def test_the_pixels_of_removed_patches_change_nothing(fields, ratio, training):
    made = model(**fields).train(training)
    images = torch.rand(3, 1, 12, 12)
    torch.manual_seed(1)
    removed, poses, image = drawn(made, images, ratio)
    assert int(removed.sum()) == 3 * round(16 * ratio)
    patches = to_patches(images, 3)
    other = torch.where(removed[..., None], torch.rand_like(patches) * 100, patches)
    torch.manual_seed(1)
    after = drawn(made, from_patches(other, 3, 4), ratio)
    assert all(torch.equal(a, b) for a, b in zip((removed, poses, image), after, strict=True))
    if not training:  # untrained, with the statistics it starts with, a squashed pose is near zero
        return
    third = torch.where(removed[..., None], patches, 1 - patches)
    torch.manual_seed(1)
    assert not torch.equal(drawn(made, from_patches(third, 3, 4), ratio)[2], image)


def test_targets_and_pixels_are_each_others_reverse():
    images = torch.rand(4, 1, 12, 12)
    plain, scaled = model(), model(target="normalized")
    assert torch.equal(plain.patch_targets(images), to_patches(images, 3))
    targets = scaled.patch_targets(images)
    assert targets.mean(-1).abs().max() < 1e-5 and (targets.std(-1) - 1).abs().max() < 0.1
    again = scaled.patch_pixels(from_patches(targets, 3, 4), images)
    torch.testing.assert_close(again, to_patches(images, 3), atol=1e-5, rtol=1e-4)


def test_stages_provide_what_they_have():
    images = torch.rand(3, 1, 12, 12)
    pretraining, finetuning = model().eval(), model("finetune").eval()
    output = pretraining(images)
    assert output.logits is None and output.reconstruction.shape == images.shape
    assert pretraining.provides == {"inpaint"} and finetuning.provides == {"logits"}
    with pytest.raises(TorchcapsError, match="has no decoder"):
        finetuning.inpaint(finetuning(images).layers[-2])


def test_classes_are_shares_that_sum_to_one():
    output = model("finetune").eval()(torch.rand(3, 1, 12, 12))
    torch.testing.assert_close(output.scores.sum(1), torch.ones(3))
    torch.testing.assert_close(output.logits.exp(), output.scores)


def test_finetuning_takes_the_encoder_and_leaves_the_decoder(tmp_path):
    first, second = model(), model("finetune")
    first.save_pretrained(tmp_path)
    begun = init_weights(second, str(tmp_path))
    assert len(begun.loaded) == len([n for n in second.state_dict() if not n.startswith("classes")])
    images = torch.rand(2, 1, 12, 12)
    one, other = (m.eval().representations(images)["capsules"] for m in (first, second))
    assert torch.equal(one, other)
    with pytest.raises(TorchcapsError, match="none of its weights fit"):
        init_weights(torchcaps.create_model("convnet-modern", channels=(2,) * 7), str(tmp_path))


def test_sizes_that_do_not_split_are_said():
    with pytest.raises(TorchcapsError, match="do not split into patches of 5"):
        model(patch_size=5)


def test_the_decoder_starts_with_a_signal():
    made = model(image_size=24, num_types=16, pose_dim=16, decoder_pose_dim=32).eval()
    images = torch.rand(4, 1, 24, 24)
    rows = visible_rows(4, made.length, made.length // 2, images.device, False)
    last = made.encode(images, rows).layers[-1]
    torch.testing.assert_close(
        made.masked_active.sigmoid(), last.activations.mean(), atol=1e-3, rtol=0
    )
    seen = {}
    norm = made.decoder.norms[0]
    norm.register_forward_hook(lambda m, i, o: seen.update(std=float(o.detach().std(-1).mean())))
    made.inpaint(last, rows)
    assert seen["std"] > 0.9


@pytest.mark.parametrize("name", ["mcae", "sr-capsnet"])
def test_route_weights_start_at_zero_or_with_a_spread(name):
    fields = TINY if name == "mcae" else {"num_types": 4, "pose_dim": 4, "channels": 4}
    plain = torchcaps.create_model(name, **fields)
    spread = torchcaps.create_model(name, **fields, route_std=0.1)
    assert not plain.layers[0].route_weight.any()
    assert 0 < float(plain.classes.route_weight.detach().std()) < 0.02
    for part in (*spread.layers, spread.classes):
        assert 0.05 < float(part.route_weight.detach().std()) < 0.15


def test_a_residual_layer_adds_to_the_poses_below():
    """With gains at zero the layers add nothing, and the primary poses come through."""
    made = model("finetune", residual=True).eval()
    for norm in made.norms:
        nn.init.zeros_(norm.weight)
    tokens = torch.randn(2, 16, 8)
    primary = made.primary(tokens).unflatten(2, (4, 4))
    torch.testing.assert_close(made.capsules(tokens)[-1].poses, primary)


@pytest.mark.parametrize(("channels", "size", "printed"), [(1, 28, 80), (1, 32, 110), (3, 32, 110)])
def test_the_vit_has_the_operations_that_the_paper_prints(channels, size, printed):
    """Millions of multiply-adds of one image through patches and backbone (its Table 2)."""
    model = torchcaps.create_model("mcae-vit", in_channels=channels, image_size=size).eval()
    image = torch.rand(1, channels, size, size)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.tokens(image)
    assert counter.get_total_flops() / 2e6 == pytest.approx(printed, rel=0.03)


@pytest.mark.parametrize("channels", [1, 3])
def test_standardized_targets_are_drawn_back_as_pixels(channels):
    made = torchcaps.create_model(
        "mcae-pretrain", image_size=16, in_channels=channels, patch_size=4, width=8, depth=1,
        num_types=2, pose_dim=4, target="standardized", decoder_shared=True,
    )  # fmt: skip
    images = torch.rand(3, channels, 16, 16)
    targets = made.patch_targets(images)
    mean = torch.tensor([0.4914, 0.4822, 0.4465] if channels == 3 else [0.1307])
    std = torch.tensor([0.2470, 0.2435, 0.2616] if channels == 3 else [0.3081])
    wanted = to_patches((images - mean[:, None, None]) / std[:, None, None], 4)
    torch.testing.assert_close(targets, wanted)
    drawn = from_patches(targets, 4, 4)
    torch.testing.assert_close(made.patch_pixels(drawn, images), to_patches(images, 4))


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"image_size": 32, "patch_size": 4}, CapsuleDecoder),
        ({"image_size": 36, "patch_size": 4}, ConvPatchDecoder),
        ({"image_size": 36, "patch_size": 4, "decoder_shared": True}, CapsuleDecoder),
        ({"image_size": 36, "patch_size": 4, "decoder": "capsules"}, CapsuleDecoder),
    ],
)
def test_the_decoder_of_many_patches_is_convolutional(fields, kind):
    assert type(model(**fields).decoder) is kind


def test_a_photograph_fits():
    """Parameters do not depend on the image's size; a step of 8 photographs takes little memory."""
    options = {"image_size": 224, "in_channels": 3, "patch_size": 16}
    large = torchcaps.create_model("mcae-pretrain", **options)
    small = torchcaps.create_model("mcae-pretrain", **{**options, "image_size": 160})
    assert large.num_parameters == small.num_parameters < 5e6
    code = (
        "import resource, torch, torchcaps\n"
        "from torchcaps.data import Batch\n"
        "from torchcaps.training.tasks import Masked, make_task\n"
        f"model = torchcaps.create_model('mcae-pretrain', **{options})\n"
        "task = make_task(model, Masked())\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = used()\n"
        "for _ in range(2):\n"
        "    batch = Batch(torch.rand(8, 3, 224, 224), torch.zeros(8).long())\n"
        "    task(batch)['loss'].backward()\n"
        "    optimizer.step()\n"
        "print(used() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 500_000  # kilobytes
