"""Nothing of a removed patch is read; patches go out and come back; stages share their weights."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import Queue
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import torchcaps
from torchcaps.cli import main
from torchcaps.errors import TorchcapsError
from torchcaps.experiments import registry
from torchcaps.experiments.chain import pretrained
from torchcaps.experiments.reproduce import Job, run_job
from torchcaps.layers.patches import Attention, from_patches, keep, put_back, to_patches
from torchcaps.train import masked
from torchcaps.train.loop import start
from torchcaps.train.masked import masked_loss, patch_targets
from torchcaps.train.recipe import LossSpec, OptimiserSpec
from torchcaps.train.run import Run, claimed
from torchcaps.train.setup import take_weights

TINY = {
    "image_size": 12, "patch_size": 3, "width": 8, "depth": 2, "num_caps": 4, "dim": 4,
    "decoder_dim": 4, "num_classes": 5,
}  # fmt: skip


def model(stage="pretrain", **fields):
    return torchcaps.create_model("mcae", **{**TINY, "stage": stage, **fields})


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

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))


def test_backbones_that_are_none_are_refused():
    for name, word in (("resnet", "timm:NAME"), ("timm:x", "Unknown"), ("timm:turned", "plain")):
        with pytest.raises(TorchcapsError, match=word):
            model(backbone=name)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "fields",
    [
        {}, {"backbone": "vit"}, {"backbone": "timm:plain"}, {"decoder": "mlp"},
        {"decoder": "conv"}, {"decoder_shared": True, "decoder_depth": 2}, {"mask_ratio": 0.75},
        {"routing": "em"}, {"routing": "inverted"}, {"routing": "dynamic"},
    ],
    ids=str,
)  # fmt: skip
def test_the_pixels_of_removed_patches_change_nothing_but_the_loss(fields, training):
    made = model(**fields).train(training)
    images = torch.rand(3, 1, 12, 12)
    torch.manual_seed(1)
    before = made(images)
    assert int(before.hidden.sum()) == 3 * round(16 * made.config.mask_ratio)
    patches = to_patches(images, 3)
    other = torch.where(before.hidden[..., None], torch.rand_like(patches) * 100, patches)
    torch.manual_seed(1)
    after = made(from_patches(other, 3, 4))
    assert torch.equal(before.hidden, after.hidden)
    assert torch.equal(before.reconstruction, after.reconstruction)
    assert torch.equal(before.capsules, after.capsules)
    if not training:  # untrained, with the statistics it starts with, a squashed pose is near zero
        return
    third = torch.where(before.hidden[..., None], patches, 1 - patches)
    torch.manual_seed(1)
    assert not torch.equal(made(from_patches(third, 3, 4)).reconstruction, before.reconstruction)


def test_the_loss_is_on_removed_patches_alone():
    made = model().eval()
    images = torch.rand(4, 1, 12, 12)
    batch = torchcaps.data.Batch(images, torch.zeros(4).long())
    output = made(images)
    error = (to_patches(output.reconstruction, 3) - to_patches(images, 3)).square().mean(-1)
    wanted = error[output.hidden].mean()
    torch.testing.assert_close(masked_loss(made, batch, LossSpec())["loss"], wanted)
    whole = masked_loss(made, batch, LossSpec(whole=True))["loss"]
    torch.testing.assert_close(whole, error.mean())
    scaled = patch_targets(images, 3, LossSpec(target="normalised"))
    assert scaled.mean(-1).abs().max() < 1e-5 and (scaled.std(-1) - 1).abs().max() < 0.1


def test_classes_are_shares_that_sum_to_one():
    output = model("finetune").eval()(torch.rand(3, 1, 12, 12))
    torch.testing.assert_close(output.lengths.sum(1), torch.ones(3))
    torch.testing.assert_close(output.logits.exp(), output.lengths)


def test_finetuning_takes_the_encoder_and_leaves_the_decoder(tmp_path):
    first, second = model(), model("finetune")
    first.save_pretrained(tmp_path)
    count = take_weights(second, str(tmp_path))
    assert count == len([n for n in second.state_dict() if not n.startswith("classes")])
    images = torch.rand(2, 1, 12, 12)
    one, other = first.eval().encode(images), second.eval().encode(images)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    with pytest.raises(TorchcapsError, match="none of its weights fit"):
        take_weights(torchcaps.create_model("convnet-modern", channels=(2,) * 7), str(tmp_path))


def test_sizes_that_do_not_split_are_said():
    with pytest.raises(TorchcapsError, match="do not split into patches of 5"):
        model(patch_size=5)
    with pytest.raises(TorchcapsError, match="leaves no patch"):
        model(mask_ratio=1.0)


@pytest.fixture
def chain(tiny_recipe, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    sizes = {**TINY, "image_size": 28, "patch_size": 7}
    first = replace(
        tiny_recipe, objective="masked", epochs=2,
        model=torchcaps.create_model("mcae-pretrain", **sizes).config,
    )  # fmt: skip
    second = replace(
        tiny_recipe, epochs=1, loss=LossSpec("cross_entropy"), before="little/pretrain",
        model=torchcaps.create_model("mcae").config,
    )  # fmt: skip
    made = {"little/pretrain": lambda: first, "little/finetune": lambda: second}
    monkeypatch.setattr(registry, "_RECIPES", made)
    return tmp_path


def test_one_command_pretrains_and_finetunes(chain, capsys):
    assert main(["train", "little/finetune", "--seed", "1"]) == 0
    first = chain / "runs/little-pretrain-s1"
    assert (first / "record.json").exists()
    lines = (first / "metrics.jsonl").read_text()
    assert "val_knn_accuracy" in lines and "val_linear_accuracy" in lines
    assert (first / "figures/reconstruction-0001.png").stat().st_size > 200
    runs = ["runs/little-pretrain-s1", "runs/little-finetune-s1"]
    assert main(["report", *runs, "--out", "both.html"]) == 0
    text = (chain / "both.html").read_text()
    assert "Reconstructions" in text and "What each unit draws" not in text
    recipe = torchcaps.load(chain / "runs/little-finetune-s1").config
    assert recipe.patch_size == 7 and recipe.stage == "finetune" and recipe.num_classes == 10


def test_the_protocol_of_the_paper_pretrains_by_it_too(chain, monkeypatch):
    plain = OptimiserSpec("sgd", 0.05, momentum=0.0)
    change = {name: lambda r: replace(r, optimiser=plain) for name in registry._RECIPES}
    monkeypatch.setattr(registry, "_AS_PRINTED", change)
    assert main(["train", "little/finetune", "--protocol", "paper"]) == 0
    for name in ("pretrain", "finetune"):
        recipe = Run(chain / f"runs/little-{name}-paper-s0").recipe()
        assert recipe.optimiser == plain and recipe.protocol == "paper"
    monkeypatch.setattr(registry, "_AS_PRINTED", {"little/finetune": change["little/finetune"]})
    assert main(["train", "little/finetune", "--protocol", "paper", "--seed", "1"]) == 0
    assert Run(chain / "runs/little-pretrain-s1").recipe().protocol == "ours"


def test_the_printed_optimiser_is_the_plainest():
    recipe = registry.get_recipe("mcae/table1/imagenette", "paper")
    before = registry.get_recipe(recipe.before, "paper")
    for made in (recipe, before):
        assert made.optimiser == OptimiserSpec("sgd", 0.1, momentum=0.0) and made.batch_size == 64
    assert recipe.epochs == 350 and before.epochs == 50


def test_or_in_two_steps(chain, capsys):
    assert main(["train", "little/pretrain", "--out", "a"]) == 0
    assert main(["train", "little/finetune", "--from", "a", "--out", "b", "--data", "digits"]) == 0
    assert '"start_from": "a"' in (chain / "b/recipe.json").read_text()
    assert not (chain / "runs").exists()
    assert main(["train", "little/finetune", "--from", "nowhere/to/be/found"]) == 1


def test_pretraining_needs_no_labels(chain, tmp_path):
    from PIL import Image

    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(40):
        pixels = torch.randint(0, 255, (28, 28), dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(folder / f"{number}.png")
    words = ["train", "little/pretrain", "--data", f"folder:{folder},size=28,mode=L"]
    assert main([*words, "--epochs", "1", "--batch-size", "8", "--out", "c"]) == 0
    assert "knn" not in (tmp_path / "c/metrics.jsonl").read_text()


def test_a_pretraining_resumes_to_the_same_bits(chain):
    from safetensors.torch import load_file

    from torchcaps.train.loop import resume
    from torchcaps.train.training import Training

    recipe = registry.get_recipe("little/pretrain")
    whole = start(recipe, chain / "whole")
    training = Training(recipe)
    training.run = Run.create(training.recipe, chain / "cut", {})
    for _ in range(7):
        training.step()
    training.save()
    resumed = resume(chain / "cut")
    one, other = (load_file(r.model / "model.safetensors") for r in (whole, resumed))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_changed_pretraining_does_not_fill_the_row(chain, capsys):
    assert main(["train", "little/pretrain", "--epochs", "1"]) == 0
    assert main(["train", "little/finetune"]) == 1
    assert "no run of little/pretrain as it stands" in capsys.readouterr().err
    assert main(["train", "little/finetune", "--from", "runs/little-pretrain-s0"]) == 0
    record = (chain / "runs/little-finetune-s0/record.json").read_text()
    assert '"pretrained"' in record and "little/pretrain" in record


def test_finetuning_has_the_sizes_of_its_source(chain, capsys):
    assert main(["train", "little/pretrain", "--out", "a"]) == 0
    words = ["train", "little/finetune", "--from", "a", "--out", "b"]
    assert main([*words, "--model.num-layers", "4"]) == 1
    assert "num_layers=3" in capsys.readouterr().err


def test_a_finetuning_resumes_without_what_it_began_with(chain):
    import shutil

    from torchcaps.train.loop import resume
    from torchcaps.train.training import Training

    first = start(registry.get_recipe("little/pretrain"), chain / "a")
    recipe = replace(registry.get_recipe("little/finetune"), start_from=str(first.folder))
    training = Training(recipe)
    training.run = Run.create(training.recipe, chain / "cut", {})
    training.step()
    training.save()
    shutil.rmtree(first.folder)
    record = resume(chain / "cut").record()
    assert record["recipe"]["start_from"] == str(first.folder)
    assert record["pretrained"] == {"from": str(first.folder)}


def test_probes_learn_from_training_images_and_are_scored_on_others(monkeypatch, digits):
    """With pixels for features: a digit's label is found, one that was drawn by lot is not."""
    monkeypatch.setattr(masked, "frozen_features", lambda _, images: images.flatten(1))
    made = model(image_size=28, patch_size=4).eval()
    right = masked.probe(made, digits, digits.val, fitted=3000)
    assert right["linear_accuracy"] > 0.7 and right["knn_accuracy"] > 0.8
    lot = digits.val.labels[torch.randperm(len(digits.val), generator=torch.Generator())]
    wrong = masked.probe(made, digits, replace(digits.val, labels=lot), fitted=3000)
    assert wrong["linear_accuracy"] < 0.25 and wrong["knn_accuracy"] < 0.25


def test_probes_need_labels_and_take_drawn_images_too(digits):
    made = model(image_size=40, patch_size=4).eval()
    drawn = torchcaps.data.load("translated:digits")
    assert set(masked.probe(made, drawn, drawn.val, fitted=100)) == {
        "linear_accuracy", "knn_accuracy",
    }  # fmt: skip
    half = digits.train.labels.clone()
    half[::2] = -1
    labelled = replace(digits, train=replace(digits.train, labels=half))
    small = model(image_size=28, patch_size=4).eval()
    assert masked.probe(small, labelled, digits.val, fitted=100)
    bare = replace(digits.train, labels=torch.full_like(half, -1))
    assert masked.probe(small, replace(digits, train=bare), digits.val) == {}


def test_the_decoder_starts_with_a_signal():
    made = model(image_size=48, num_caps=16, dim=16, decoder_dim=32).eval()
    images = torch.rand(4, 1, 48, 48)
    rows = made.rows(images)
    poses, active = made.encode(images, rows)
    torch.testing.assert_close(made.hidden_active.sigmoid(), active.mean(), atol=1e-3, rtol=0)
    seen = {}
    norm = made.decoder.norms[0]
    norm.register_forward_hook(lambda m, i, o: seen.update(std=float(o.detach().std(-1).mean())))
    made.draw(poses, active, rows)
    assert seen["std"] > 0.9


@pytest.mark.parametrize("name", ["mcae", "sr-capsnet"])
def test_route_weights_start_at_zero_or_with_a_spread(name):
    fields = TINY if name == "mcae" else {"num_types": 4, "dim": 4, "channels": 4}
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
    torch.testing.assert_close(made.capsules(tokens)[0], primary)


@pytest.mark.parametrize(("channels", "size", "printed"), [(1, 28, 80), (1, 32, 110), (3, 32, 110)])
def test_the_vit_has_the_operations_that_the_paper_prints(channels, size, printed):
    """Millions of multiply-adds of one image through patches and backbone (its Table 2)."""
    model = torchcaps.create_model("mcae-vit", in_channels=channels, image_size=size).eval()
    image = torch.rand(1, channels, size, size)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.tokens(image)
    assert counter.get_total_flops() / 2e6 == pytest.approx(printed, rel=0.03)


def test_rows_that_share_a_pretraining_wait_for_each_other(chain):
    """Two processes that train one folder would write over each other's checkpoints."""
    folder, said = chain / "runs/little-pretrain-s0", Queue()
    row = registry.get_recipe("little/finetune")
    with ThreadPoolExecutor(1) as pool:
        with claimed(folder, row):
            ending = pool.submit(pretrained, row, SimpleNamespace(print=said.put))
            assert "waiting" in said.get(timeout=60)
            assert not folder.exists() and not ending.done()
            start(registry.get_recipe("little/pretrain"), folder)
        assert ending.result(timeout=60).start_from == "runs/little-pretrain-s0"
    assert not (chain / "runs/little-pretrain-s0-2").exists()


def recorded(folder) -> list[str]:
    lines = (folder / "other.jsonl").read_text().splitlines()
    return [json.loads(line)["recipe"] for line in lines]


def test_a_pretraining_is_recorded_with_its_row(chain):
    row = ["train", "little/finetune", "--record"]
    assert main(row) == 0
    assert {*recorded(chain / "results")} == {"little/pretrain", "little/finetune"}
    assert main(["train", "little/pretrain", "--seed", "1"]) == 0
    assert main([*row, "--seed", "1"]) == 0  # that had ended before
    assert recorded(chain / "results").count("little/pretrain") == 12
    assert run_job(Job("little/finetune", 2), "", chain / "others").error == ""
    assert {*recorded(chain / "others")} == {"little/pretrain", "little/finetune"}
