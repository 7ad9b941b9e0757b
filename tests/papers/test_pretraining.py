"""Pretraining before a recipe that needs it, by one command or in two steps."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import Queue
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import torchcaps
from tests.models.mcae.test_model import TINY
from torchcaps.cli import main
from torchcaps.models.registry import model_config
from torchcaps.papers.mcae.setting import PROBES
from torchcaps.papers.pretraining import pretrained
from torchcaps.papers.reproduce import Job, reproduce
from torchcaps.training.loop import resume, start
from torchcaps.training.recipe import OptimizerSpec
from torchcaps.training.registry import get_recipe
from torchcaps.training.run import Run, claimed
from torchcaps.training.setup import set_up
from torchcaps.training.state import Training
from torchcaps.training.tasks import Classify, Masked

SIZES = {
    k: v for k, v in {**TINY, "patch_size": 7}.items() if k not in ("image_size", "num_classes")
}


@pytest.fixture
def chain(tiny_recipe, registered, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    first = replace(
        tiny_recipe, task=Masked(), epochs=2, model=model_config("mcae-pretrain", **SIZES),
        watch=PROBES,
    )  # fmt: skip
    second = replace(
        tiny_recipe, epochs=1, task=Classify(loss="cross_entropy"), before="little/pretrain",
        model=model_config("mcae"),
    )  # fmt: skip
    registered.recipe("little/pretrain", first)
    registered.recipe("little/finetune", second)
    return tmp_path


def test_one_command_pretrains_and_finetunes(chain, capsys):
    assert main(["train", "little/finetune", "--seed", "1"]) == 0
    first = chain / "runs/little-pretrain-s1"
    assert (first / "record.json").exists()
    lines = (first / "metrics.jsonl").read_text()
    assert "val_knn_accuracy" in lines and "val_linear_accuracy" in lines
    assert (first / "figures/masked-0001.png").stat().st_size > 200
    runs = ["runs/little-pretrain-s1", "runs/little-finetune-s1"]
    assert main(["report", *runs, "--out", "both.html"]) == 0
    text = (chain / "both.html").read_text()
    assert "Removed patches" in text and "Latent traversal" not in text
    recipe = torchcaps.load(chain / "runs/little-finetune-s1").config
    assert recipe.patch_size == 7 and recipe.stage == "finetune" and recipe.num_classes == 10


def test_the_protocol_of_the_paper_pretrains_by_it_too(chain, registered):
    plain = OptimizerSpec(kind="sgd", lr=0.05, momentum=0.0)

    def printed(recipe):
        return replace(recipe, optimizer=plain)

    recipes = {name: get_recipe(name) for name in ("little/pretrain", "little/finetune")}
    for name, recipe in recipes.items():
        registered.recipe(name, recipe, printed)
    assert main(["train", "little/finetune", "--protocol", "paper"]) == 0
    for name in ("pretrain", "finetune"):
        recipe = Run(chain / f"runs/little-{name}-paper-s0").recipe()
        assert recipe.optimizer == plain and recipe.protocol == "paper"
    registered.recipe("little/pretrain", recipes["little/pretrain"])
    assert main(["train", "little/finetune", "--protocol", "paper", "--seed", "1"]) == 0
    assert Run(chain / "runs/little-pretrain-s1").recipe().protocol == "ours"


def test_the_printed_optimizer_is_the_plainest():
    recipe = get_recipe("mcae/table1/imagenette", "paper")
    before = get_recipe(recipe.before, "paper")
    for made in (recipe, before):
        assert (
            made.optimizer == OptimizerSpec(kind="sgd", lr=0.1, momentum=0.0)
            and made.batch_size == 64
        )
    assert recipe.epochs == 350 and before.epochs == 50


def test_or_in_two_steps(chain, capsys):
    assert main(["train", "little/pretrain", "--out", "a"]) == 0
    assert main(["train", "little/finetune", "--from", "a", "--out", "b", "--data", "digits"]) == 0
    assert '"start_from": "a"' in (chain / "b/recipe.json").read_text()
    assert not (chain / "runs").exists()
    assert main(["train", "little/finetune", "--from", "nowhere/to/be/found"]) == 1


def test_pretraining_needs_no_labels(chain, capsys):
    folder = chain / "photos"
    folder.mkdir()
    for number in range(40):
        pixels = torch.randint(0, 255, (28, 28), dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(folder / f"{number}.png")
    words = ["train", "little/pretrain", "--data", f"folder:{folder},size=28,mode=L"]
    words += ["--data.per-class", "0"]
    assert main([*words, "--epochs", "1", "--batch-size", "8", "--out", "c"]) == 0
    assert "knn" not in (chain / "c/metrics.jsonl").read_text()
    output = " ".join(capsys.readouterr().out.split())
    assert "has no labels: skipping the metrics linear,limit=5000" in output


def cut(recipe, folder, steps):
    """A run that was killed after so many steps."""
    resolved, parts = set_up(recipe)
    training = Training(resolved, parts, Run.create(resolved, folder))
    for _ in range(steps):
        training.step()
    training.save()


def test_a_pretraining_resumes_to_the_same_bits(chain):
    recipe = get_recipe("little/pretrain")
    whole = start(recipe, chain / "whole")
    cut(recipe, chain / "cut", 7)
    resumed = resume(chain / "cut")
    one, other = (load_file(r.model_folder / "model.safetensors") for r in (whole, resumed))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_changed_pretraining_does_not_fill_the_row(chain, capsys):
    assert main(["train", "little/pretrain", "--epochs", "1"]) == 0
    assert main(["train", "little/finetune"]) == 1
    assert "not a run of today's little/pretrain" in capsys.readouterr().err
    assert main(["train", "little/finetune", "--from", "runs/little-pretrain-s0"]) == 0
    record = (chain / "runs/little-finetune-s0/record.json").read_text()
    assert '"pretrained"' in record and "little/pretrain" in record


def test_finetuning_has_the_sizes_of_its_source(chain, capsys):
    assert main(["train", "little/pretrain", "--out", "a"]) == 0
    words = ["train", "little/finetune", "--from", "a", "--out", "b"]
    assert main([*words, "--model.num-layers", "4"]) == 1
    assert "num_layers=3" in capsys.readouterr().err


def test_a_finetuning_resumes_without_what_it_began_with(chain):
    first = start(get_recipe("little/pretrain"), chain / "a")
    recipe = replace(get_recipe("little/finetune"), start_from=str(first.folder))
    cut(recipe, chain / "cut", 1)
    shutil.rmtree(first.folder)
    record = resume(chain / "cut").record()
    assert record["recipe"]["start_from"] == str(first.folder)
    assert record["pretrained"] == {"from": str(first.folder)}


def test_rows_that_share_a_pretraining_wait_for_each_other(chain):
    """Two processes that train one folder would write over each other's checkpoints."""
    folder, said = chain / "runs/little-pretrain-s0", Queue()
    row = get_recipe("little/finetune")
    with ThreadPoolExecutor(1) as pool:
        with claimed(folder, row):
            ending = pool.submit(pretrained, row, SimpleNamespace(print=said.put))
            assert "waiting" in said.get(timeout=60)
            assert not folder.exists() and not ending.done()
            start(get_recipe("little/pretrain"), folder)
        assert ending.result(timeout=60).start_from == "runs/little-pretrain-s0"
    assert not (chain / "runs/little-pretrain-s0-2").exists()


def recorded(folder) -> list[str]:
    lines = (folder / "other.jsonl").read_text().splitlines()
    return [json.loads(line)["recipe"] for line in lines]


def test_a_pretraining_is_recorded_with_its_row(chain):
    row = ["train", "little/finetune", "--record"]
    assert main(row) == 0
    assert {*recorded(chain / "results")} == {"little/pretrain", "little/finetune"}
    once = recorded(chain / "results").count("little/pretrain")
    assert main(["train", "little/pretrain", "--seed", "1"]) == 0
    assert main([*row, "--seed", "1"]) == 0  # that had ended before
    assert recorded(chain / "results").count("little/pretrain") == 2 * once
    (done,) = reproduce([Job("little/finetune", 2)], results=chain / "others")
    assert done.error == ""
    assert {*recorded(chain / "others")} == {"little/pretrain", "little/finetune"}
