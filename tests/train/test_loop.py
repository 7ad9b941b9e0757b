"""The loop: learning, choosing, stopping, resuming to the same bits, failing with a reason."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import torchcaps
from torchcaps.errors import TorchcapsError
from torchcaps.models.registry import model_config
from torchcaps.train.loop import Interrupted, go, resume, start
from torchcaps.train.recipe import DataSpec, HardwareSpec, LossSpec, OptimiserSpec, Recipe
from torchcaps.train.run import Run, claimed
from torchcaps.train.training import Training


def weights(run: Run):
    return load_file(run.model / "model.safetensors")


def same(a: Run, b: Run) -> None:
    one, two = weights(a), weights(b)
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name
    assert a.metrics() == b.metrics()
    assert a.record()["results"] == b.record()["results"]


def test_a_run_learns_and_leaves_a_whole_folder(tiny_recipe, tmp_path):
    recipe = replace(tiny_recipe, epochs=6, optimiser=OptimiserSpec(lr=5e-3), tensorboard=True)
    run = torchcaps.train(recipe, tmp_path / "run")
    lines = run.metrics()
    assert len(lines) == 6 and lines[-1]["train_loss"] < 0.8 * lines[0]["train_loss"]
    record = run.record()
    assert {r["split"] for r in record["results"]} == {"test", "val"}
    accuracy = next(
        r["value"] for r in record["results"] if (r["split"], r["metric"]) == ("test", "accuracy")
    )
    assert accuracy > 0.5
    best = max(range(6), key=lambda i: (lines[i]["val_accuracy"], i))
    assert record["chosen_epoch"] == best
    for key in ("command", "commit", "date", "device", "versions", "parameters", "seconds"):
        assert record[key], key
    assert list((run.folder / "tensorboard").iterdir())
    model = torchcaps.load(run.folder)
    assert model.record == record
    val = next(
        r["value"] for r in record["results"] if (r["split"], r["metric"]) == ("val", "accuracy")
    )
    assert val == pytest.approx(lines[best]["val_accuracy"])


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tiny_recipe, tmp_path):
    runs = [start(replace(tiny_recipe, seed=s), tmp_path / str(i)) for i, s in enumerate((1, 1, 2))]
    same(runs[0], runs[1])
    assert runs[0].metrics() != runs[2].metrics()


@pytest.mark.parametrize("options", ["plain", "ema-sgd"])
def test_a_stopped_run_ends_with_the_same_bits(tiny_recipe, tmp_path, monkeypatch, options):
    recipe = replace(tiny_recipe, checkpoint_seconds=1e9)
    if options == "ema-sgd":
        recipe = replace(recipe, optimiser=OptimiserSpec("sgd", lr=0.1, ema=0.9, clip=1.0))
    whole = start(recipe, tmp_path / "whole")
    original = Training.step

    def stop_at(step):
        def stopping(self):
            original(self)
            if self.state.step == step:
                signal.raise_signal(signal.SIGINT)

        return stopping

    monkeypatch.setattr(Training, "step", stop_at(7))
    with pytest.raises(Interrupted):
        start(recipe, tmp_path / "stopped")
    monkeypatch.setattr(Training, "step", stop_at(23))
    with pytest.raises(Interrupted):
        resume(tmp_path / "stopped")
    monkeypatch.setattr(Training, "step", original)
    with pytest.raises(TorchcapsError, match="not finished"):
        Run.open(tmp_path / "stopped").record()
    same(whole, resume(tmp_path / "stopped"))
    same(whole, resume(tmp_path / "stopped"))
    begun = json.loads((tmp_path / "stopped" / "start.json").read_text())
    assert Run.open(tmp_path / "stopped").record()["date"] == begun["date"]


def test_accumulation_changes_memory_and_not_the_result(tiny_recipe, tmp_path):
    recipe = replace(tiny_recipe, epochs=1)
    parts = replace(recipe, optimiser=replace(recipe.optimiser, accumulate=3))
    one, two = start(recipe, tmp_path / "a"), start(parts, tmp_path / "b")
    assert one.metrics()[0]["train_loss"] == pytest.approx(two.metrics()[0]["train_loss"], rel=1e-4)


def test_training_stops_at_the_target(tiny_recipe, tmp_path):
    run = start(replace(tiny_recipe, epochs=50, target_accuracy=0.15), tmp_path / "run")
    assert run.record()["epochs_trained"] < 50
    assert run.metrics()[-1]["val_accuracy"] >= 0.15


def test_choose_last(tiny_recipe, tmp_path):
    assert (
        start(replace(tiny_recipe, choose="last"), tmp_path / "run").record()["chosen_epoch"] == 1
    )


@pytest.mark.parametrize("kind", ["margin", "cross_entropy", "binary_cross_entropy"])
@pytest.mark.parametrize("model", ["capsnet-small", "convnet-avg-small"])
def test_every_loss_goes_with_every_model(kind, model, tmp_path, tiny_recipe):
    sizes = {"channels": 4, "num_types": 2} if "caps" in model else {"channels": (4, 4)}
    recipe = replace(tiny_recipe, epochs=1, batch_size=2000, loss=LossSpec(kind))
    run = start(replace(recipe, model=model_config(model, **sizes)), tmp_path / "run")
    assert run.record()["results"]


def test_overlapping_digits_train_with_a_drawing_each(tmp_path, tiny_recipe):
    recipe = replace(
        tiny_recipe, epochs=1, batch_size=1000, data=DataSpec("multimnist:digits,copies=1")
    )
    record = start(recipe, tmp_path / "run").record()
    assert {r["metric"] for r in record["results"]} == {"accuracy", "exact_match", "loss"}


def test_unlabelled_images_can_be_drawn_but_not_classified(tmp_path, tiny_recipe):
    from PIL import Image

    for i in range(60):
        Image.new("L", (32, 32), 4 * i).save(tmp_path / f"{i}.png")
    spec = DataSpec(f"folder:{tmp_path},size=28,mode=L")
    recipe = replace(tiny_recipe, data=spec, batch_size=20)
    with pytest.raises(TorchcapsError, match="no labels"):
        start(recipe, tmp_path / "a")
    run = start(replace(recipe, objective="reconstruct", epochs=3), tmp_path / "b")
    lines = run.metrics()
    assert lines[-1]["val_loss"] < lines[0]["val_loss"]


def test_a_loss_that_is_not_finite_stops_with_step_layer_and_checkpoint(
    tiny_recipe, tmp_path, monkeypatch
):
    recipe = replace(tiny_recipe, optimiser=OptimiserSpec("sgd", lr=1e20, momentum=0.0))
    with pytest.raises(TorchcapsError) as error:
        start(recipe, tmp_path / "run")
    text = str(error.value)
    assert "at step" in text and "checkpoint is step 0" in text
    assert "weights" in text or "output of" in text
    original = Training._loss

    def poisoned(self, *tensors):
        if self.state.step >= 5:
            with torch.no_grad():
                self.parts.model.primary.conv.bias.fill_(float("inf"))
        return original(self, *tensors)

    monkeypatch.setattr(Training, "_loss", poisoned)
    with pytest.raises(TorchcapsError, match="at step 5"):
        start(tiny_recipe, tmp_path / "poisoned")


def test_a_broken_state_replaces_no_good_checkpoint(tiny_recipe, tmp_path):
    """Losses that are looked at now and then, as on a GPU, while checkpoints are due every step."""
    recipe = replace(tiny_recipe, checkpoint_seconds=0)
    training = Training(recipe)
    training.run = Run.create(recipe, tmp_path / "run")
    training.check_every = 10**9
    original = training.step

    def poisoning():
        original()
        if training.state.step == 5:
            with torch.no_grad():
                training.parts.model.stem[0].weight.fill_(float("nan"))

    training.step = poisoning
    training.save()
    with pytest.raises(TorchcapsError, match="at step 5"):
        go(training)
    kept = sorted(int(p.name) for p in training.run.checkpoints.iterdir())
    assert kept == [3, 4]


def test_a_run_killed_before_its_first_checkpoint_begins_again(tiny_recipe, tmp_path):
    whole = start(tiny_recipe, tmp_path / "whole")
    killed = Run.create(tiny_recipe, tmp_path / "killed")
    same(whole, resume(killed.folder))


def test_a_gradient_that_is_not_finite_is_found_under_clipping_too(tiny_recipe, tmp_path):
    class Poison(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * float("nan")

    recipe = replace(tiny_recipe, optimiser=OptimiserSpec(clip=1.0))
    training = Training(recipe)
    training.run = Run.create(recipe, tmp_path / "run")
    training.save()
    hook = lambda m, i, o: Poison.apply(o) if training.state.step == 3 else o  # noqa: E731
    training.parts.model.primary.conv.register_forward_hook(hook)
    with pytest.raises(TorchcapsError, match="gradient of .* at step 3"):
        go(training)


def test_first_bad_layer_is_the_first():
    from torchcaps.train.diagnose import first_bad_layer

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 1))
    x = torch.full((1, 2), float("inf"))
    assert first_bad_layer(model, lambda: model(x).sum()) == "the output of 0 (Linear)"
    clean = torch.ones(1, 2)
    assert first_bad_layer(model, lambda: model(clean).sum() / 0) == "the loss itself"
    assert "gradient of" in first_bad_layer(model, lambda: (model(clean) * 0).sum().sqrt())
    with torch.no_grad():
        model[2].weight.fill_(float("nan"))
    assert first_bad_layer(model, lambda: model(x).sum()) == "the weights 2.weight"


def test_folders_that_cannot_be_used_are_explained(tiny_recipe, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TorchcapsError, match="cannot be written"):
        start(tiny_recipe, tmp_path / "file" / "run")
    with pytest.raises(TorchcapsError, match="not a run"):
        resume(tmp_path)
    run = Run.create(tiny_recipe, tmp_path / "run")
    with pytest.raises(TorchcapsError, match="holds a run already"):
        Run.create(tiny_recipe, run.folder)
    values = json.loads(run.recipe_file.read_text())
    run.recipe_file.write_text(json.dumps({**values, "version": 0}))
    with pytest.raises(TorchcapsError, match="version 0"):
        resume(run.folder)


def test_a_set_that_cannot_be_evaluated_is_said_before_training(tiny_recipe, tmp_path):
    with pytest.raises(TorchcapsError, match="or none: --evaluate"):
        start(replace(tiny_recipe, evaluate=("translated:digits",)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_bf16_trains(tiny_recipe, tmp_path):
    recipe = replace(tiny_recipe, epochs=1, hardware=HardwareSpec(precision="bf16"))
    assert start(recipe, tmp_path / "run").metrics()[0]["train_loss"] > 0


@pytest.mark.slow
def test_a_compiled_step_learns_the_same(tiny_recipe, tmp_path):
    recipe = replace(tiny_recipe, epochs=1)
    plain = start(recipe, tmp_path / "plain")
    fast = start(replace(recipe, hardware=HardwareSpec(compile="default")), tmp_path / "fast")
    assert fast.metrics()[0]["train_loss"] == pytest.approx(
        plain.metrics()[0]["train_loss"], rel=1e-3
    )


def test_cutmix_trains_and_wants_a_loss_that_can_mix(tiny_recipe, tmp_path):
    mixed = replace(tiny_recipe, epochs=1, data=replace(tiny_recipe.data, cutmix=0.5))
    with pytest.raises(TorchcapsError, match="cross_entropy"):
        start(mixed, tmp_path / "margin")
    both = [
        start(replace(recipe, loss=LossSpec("cross_entropy", reconstruction=0)), tmp_path / name)
        for name, recipe in (("mixed", mixed), ("plain", replace(tiny_recipe, epochs=1)))
    ]
    assert both[0].metrics()[-1]["train_loss"] > both[1].metrics()[-1]["train_loss"]
    with pytest.raises(TorchcapsError, match="cannot draw a mixture"):
        start(replace(mixed, loss=LossSpec("cross_entropy")), tmp_path / "drawn")
    with pytest.raises(TorchcapsError, match="from 0 to 1"):
        start(replace(mixed, data=replace(mixed.data, cutmix=2.0)), tmp_path / "more")


def test_the_default_recipe_is_a_capsnet():
    assert Recipe().model == model_config("capsnet")


def test_choosing_on_the_test_split_must_be_named(tiny_recipe, tmp_path):
    wrong = replace(tiny_recipe, stop_on="test")
    with pytest.raises(TorchcapsError, match="chooses on the test split"):
        start(wrong, tmp_path / "a")
    run = start(replace(wrong, protocol="paper", target_accuracy=0.01, epochs=3), tmp_path / "b")
    lines = (run.folder / "metrics.jsonl").read_text()
    assert "test_accuracy" in lines and "val_accuracy" not in lines
    record = run.record()
    assert record["epochs_trained"] == 1 and record["recipe"]["protocol"] == "paper"


def test_exact_match_wants_every_label_and_no_other(digits):
    from torchcaps.models import Output
    from torchcaps.train.objectives import evaluate_classes, exact

    labels = torch.tensor([[1, 2], [1, -1], [1, 2], [0, -1]])
    lengths = torch.tensor([[0.1, 0.9, 0.9], [0.1, 0.9, 0.2], [0.1, 0.9, 0.4], [0.9, 0.8, 0.1]])
    assert exact(Output(lengths, lengths), labels).tolist() == [True, True, False, False]
    logits = torch.logit(lengths)
    assert exact(Output(logits), labels).tolist() == [True, True, False, False]

    class Fixed(torch.nn.Module):
        def forward(self, images, reconstruct=True):
            return Output(lengths, lengths)

    split = torchcaps.data.Split(torch.zeros(4, 1, 2, 2, dtype=torch.uint8), labels)
    found = evaluate_classes(Fixed(), split, LossSpec("margin"))
    assert found["exact_match"] == 0.5 and found["accuracy"] == 1.0


def test_a_run_with_two_groups_of_parameters_resumes_to_the_same_bits(tiny_recipe, tmp_path):
    spec = OptimiserSpec("sgd", 0.05, 5e-4, nesterov=True, decay_all=False)
    recipe = replace(tiny_recipe, optimiser=spec)
    whole = start(recipe, tmp_path / "whole")
    training = Training(recipe)
    training.run = Run.create(training.recipe, tmp_path / "cut", {})
    for _ in range(5):
        training.step()
    training.save()
    resumed = resume(tmp_path / "cut")
    one, other = (load_file(r.model / "model.safetensors") for r in (whole, resumed))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_that_is_being_trained_is_not_resumed(tiny_recipe, tmp_path):
    training = Training(tiny_recipe)
    training.run = Run.create(training.recipe, tmp_path / "run", {})
    training.save()
    with ThreadPoolExecutor(1) as pool, claimed(training.run.folder, tiny_recipe):
        with pytest.raises(TorchcapsError, match="another process is training it"):
            pool.submit(resume, training.run.folder).result()
    assert resume(training.run.folder).record()["results"]


def test_processes_of_one_run_do_not_wait_for_each_other(tiny_recipe, tmp_path):
    pair = replace(tiny_recipe, hardware=HardwareSpec(devices=2))

    def other(recipe: Recipe) -> bool:
        with claimed(tmp_path / "run", recipe):
            return True

    with ThreadPoolExecutor(1) as pool, claimed(tmp_path / "run", tiny_recipe):
        with pytest.raises(TorchcapsError):
            pool.submit(other, tiny_recipe).result()
        assert pool.submit(other, pair).result()
        assert other(tiny_recipe)  # whoever has it may claim again
