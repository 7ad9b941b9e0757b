"""The loop: learning, choosing, stopping, resuming to the same bits, failing with a reason."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import torchcaps
from torchcaps.errors import Interrupted, TorchcapsError
from torchcaps.metrics.accuracy import Training as TrainAccuracy
from torchcaps.models.registry import model_config
from torchcaps.training.evaluate import evaluate
from torchcaps.training.hardware import make_fabric
from torchcaps.training.loop import resume, start, train_to_end
from torchcaps.training.recipe import DataSpec, HardwareSpec, OptimizerSpec, Recipe, ScheduleSpec
from torchcaps.training.run import Run, claimed
from torchcaps.training.setup import set_up
from torchcaps.training.state import Training
from torchcaps.training.tasks import Classify, Reconstruct
from torchcaps.training.tasks.classify import ClassifyTask


def begun(recipe, folder) -> Training:
    """A run at its first step."""
    resolved, parts = set_up(recipe)
    return Training(resolved, parts, Run.create(resolved, folder))


def weights(run: Run):
    return load_file(run.model_folder / "model.safetensors")


def same(a: Run, b: Run) -> None:
    one, two = weights(a), weights(b)
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name
    assert a.metrics == b.metrics
    assert a.record()["results"] == b.record()["results"]


def test_a_run_learns_and_leaves_a_whole_folder(tiny_recipe, tmp_path):
    recipe = replace(
        tiny_recipe, epochs=6, optimizer=OptimizerSpec(lr=5e-3), track=("tensorboard",)
    )
    run = torchcaps.fit(recipe, out=tmp_path / "run", quiet=True)
    lines = run.metrics
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
    assert {"train_classification", "train_reconstruction"} <= set(lines[0])
    weight = recipe.task.reconstruction
    whole = lines[0]["train_classification"] + weight * lines[0]["train_reconstruction"]
    assert lines[0]["train_loss"] == pytest.approx(whole, rel=1e-4)
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
    assert runs[0].metrics != runs[2].metrics


@pytest.mark.parametrize("options", ["plain", "ema-sgd"])
def test_a_stopped_run_ends_with_the_same_bits(tiny_recipe, tmp_path, monkeypatch, options):
    recipe = replace(tiny_recipe, checkpoint_seconds=1e9)
    if options == "ema-sgd":
        recipe = replace(recipe, optimizer=OptimizerSpec(kind="sgd", lr=0.1, ema=0.9, clip=1.0))
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
    record = Run.open(tmp_path / "stopped").record()
    assert (
        record["date"] == begun["date"] and record["run"] == begun["run"] != whole.record()["run"]
    )


def test_accumulation_changes_memory_and_not_the_result(tiny_recipe, tmp_path):
    recipe = replace(tiny_recipe, epochs=1)
    parts = replace(recipe, optimizer=replace(recipe.optimizer, accumulate=3))
    one, two = start(recipe, tmp_path / "a"), start(parts, tmp_path / "b")
    assert one.metrics[0]["train_loss"] == pytest.approx(two.metrics[0]["train_loss"], rel=1e-4)


def test_training_stops_at_the_target(tiny_recipe, tmp_path):
    run = start(replace(tiny_recipe, epochs=50, target_accuracy=0.15), tmp_path / "run")
    assert run.record()["epochs_trained"] < 50
    assert run.metrics[-1]["val_accuracy"] >= 0.15


def test_training_until_fitted(tiny_recipe, tmp_path, monkeypatch):
    """To the first epoch with all training images correct, or to a flat loss; the last epoch."""
    told = iter([0.2, 0.7, 1.0])
    monkeypatch.setattr(
        TrainAccuracy, "score", lambda *_: {"train_accuracy": next(told)}
    )  # fmt: skip
    recipe = replace(tiny_recipe, epochs=50, until="fitted", choose="last")
    run = start(recipe, tmp_path / "all")
    assert [line["train_accuracy"] for line in run.metrics] == [0.2, 0.7, 1.0]
    assert run.record()["chosen_epoch"] == 2
    monkeypatch.undo()
    still = replace(recipe, optimizer=OptimizerSpec(lr=0.0), steps=50, validate_every=2)
    run = start(still, tmp_path / "flat")
    assert len(run.metrics) < 25 and 0 < run.metrics[-1]["train_accuracy"] < 0.5
    with pytest.raises(TorchcapsError, match="until=fitted needs a classifier"):
        start(replace(recipe, task=Reconstruct()), tmp_path / "drawn")


def test_choose_by_loss(tiny_recipe, tmp_path, monkeypatch):
    """The epoch with the lowest validation loss, whatever its accuracy."""
    said = iter([(0.5, 1.0), (0.6, 0.4), (0.9, 0.7)])
    original = ClassifyTask.evaluate

    def evaluate(self, rows):  # the evaluation at the end has numbers of its own
        told = next(said, None)
        return dict(zip(("accuracy", "loss"), told, strict=True)) if told else original(self, rows)

    monkeypatch.setattr(ClassifyTask, "evaluate", evaluate)
    recipe = replace(tiny_recipe, epochs=3, choose="loss")
    assert start(recipe, tmp_path / "run").record()["chosen_epoch"] == 1


def test_what_is_watched_is_measured_some_ten_times_a_run(tiny_recipe, tmp_path):
    watched = replace(tiny_recipe, steps=40, validate_every=1, watch=("knn,limit=50",))
    lines = start(watched, tmp_path / "run").metrics
    measured = [line["epoch"] for line in lines if "val_knn_accuracy" in line]
    assert measured == [0, 1, 3, 7, 11, 15, 19, 23, 27, 31, 35, 39]
    assert len(lines) == 40 and all("val_accuracy" in line for line in lines)


def test_choose_last(tiny_recipe, tmp_path):
    assert (
        start(replace(tiny_recipe, choose="last"), tmp_path / "run").record()["chosen_epoch"] == 1
    )


@pytest.mark.parametrize("kind", ["margin", "cross_entropy", "binary_cross_entropy"])
@pytest.mark.parametrize("model", ["capsnet-small", "convnet-avg-small"])
def test_every_loss_goes_with_every_model(kind, model, tmp_path, tiny_recipe):
    sizes = {"channels": 4, "num_types": 2} if "caps" in model else {"channels": (4, 4)}
    recipe = replace(tiny_recipe, epochs=1, batch_size=500, task=Classify(loss=kind))
    run = start(replace(recipe, model=model_config(model, **sizes)), tmp_path / "run")
    assert run.record()["results"]


def test_overlapping_digits_train_with_a_drawing_each(tmp_path, tiny_recipe):
    recipe = replace(
        tiny_recipe, epochs=1, batch_size=1000, data=DataSpec(name="multimnist:digits,copies=1")
    )
    record = start(recipe, tmp_path / "run").record()
    assert {r["metric"] for r in record["results"]} == {"accuracy", "exact_match", "loss"}


def test_unlabelled_images_can_be_drawn_but_not_classified(tmp_path, tiny_recipe):
    from PIL import Image

    for i in range(60):
        Image.new("L", (32, 32), 4 * i).save(tmp_path / f"{i}.png")
    spec = DataSpec(name=f"folder:{tmp_path},size=28,mode=L")
    recipe = replace(tiny_recipe, data=spec, batch_size=20)
    with pytest.raises(TorchcapsError, match="no labels"):
        start(recipe, tmp_path / "a")
    run = start(replace(recipe, task=Reconstruct(), epochs=3), tmp_path / "b")
    lines = run.metrics
    assert lines[-1]["val_loss"] < lines[0]["val_loss"]


def test_a_loss_that_is_not_finite_stops_with_step_layer_and_checkpoint(
    tiny_recipe, tmp_path, monkeypatch
):
    recipe = replace(tiny_recipe, optimizer=OptimizerSpec(kind="sgd", lr=1e20, momentum=0.0))
    with pytest.raises(TorchcapsError) as error:
        start(recipe, tmp_path / "run")
    text = str(error.value)
    assert "at step" in text and "checkpoint is step 0" in text
    assert "weights" in text or "output of" in text
    original = Training._losses

    def poisoned(self, *tensors):
        if self.state.step >= 5:
            with torch.no_grad():
                self.context.task.model.primary.conv.bias.fill_(float("inf"))
        return original(self, *tensors)

    monkeypatch.setattr(Training, "_losses", poisoned)
    with pytest.raises(TorchcapsError, match="at step 5"):
        start(tiny_recipe, tmp_path / "poisoned")


def test_a_broken_state_replaces_no_good_checkpoint(tiny_recipe, tmp_path):
    """Losses that are looked at now and then, as on a GPU, while checkpoints are due every step."""
    recipe = replace(tiny_recipe, checkpoint_seconds=0)
    training = begun(recipe, tmp_path / "run")
    training.check_every = 10**9
    original = training.step

    def poisoning():
        original()
        if training.state.step == 5:
            with torch.no_grad():
                training.context.task.model.stem[0].weight.fill_(float("nan"))

    training.step = poisoning
    training.save()
    with pytest.raises(TorchcapsError, match="at step 5"):
        train_to_end(training)
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

    recipe = replace(tiny_recipe, optimizer=OptimizerSpec(clip=1.0))
    training = begun(recipe, tmp_path / "run")
    training.save()
    hook = lambda m, i, o: Poison.apply(o) if training.state.step == 3 else o  # noqa: E731
    training.context.task.model.primary.conv.register_forward_hook(hook)
    with pytest.raises(TorchcapsError, match="gradient of .* at step 3"):
        train_to_end(training)


def test_first_bad_layer_is_the_first():
    from torchcaps.training.failures import first_bad_layer

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
    with pytest.raises(TorchcapsError, match="already holds a run"):
        Run.create(tiny_recipe, run.folder)
    values = json.loads(run.recipe_file.read_text())
    run.recipe_file.write_text(json.dumps({**values, "version": 0}))
    with pytest.raises(TorchcapsError, match="version 0"):
        resume(run.folder)


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        (("accuracy:translated:digits",), "in --metrics.* need data of the same size"),
        (("accuracy", "lenear"), "Did you mean 'linear'"),
        (("linear,features=colour",), "no representation 'colour'. There are: capsules, features"),
        (("linear,limits=3",), "no option 'limits'. Did you mean 'limit'"),
        (("linear:digits,fit=tests",), "'tests' is not one of train, val, test, train"),
    ],
)
def test_what_cannot_be_measured_is_said(tiny_recipe, tmp_path, metrics, words):
    with pytest.raises(TorchcapsError, match=words):
        start(replace(tiny_recipe, epochs=1, metrics=metrics), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_bf16_trains(tiny_recipe, tmp_path):
    recipe = replace(tiny_recipe, epochs=1, hardware=HardwareSpec(precision="bf16"))
    assert start(recipe, tmp_path / "run").metrics[0]["train_loss"] > 0


@pytest.mark.slow
def test_a_compiled_step_learns_the_same(tiny_recipe, tmp_path):
    recipe = replace(tiny_recipe, epochs=1)
    plain = start(recipe, tmp_path / "plain")
    fast = start(replace(recipe, hardware=HardwareSpec(compile="default")), tmp_path / "fast")
    assert fast.metrics[0]["train_loss"] == pytest.approx(plain.metrics[0]["train_loss"], rel=1e-3)


def test_cutmix_trains_and_wants_a_loss_that_can_mix(tiny_recipe, tmp_path):
    mixed = replace(tiny_recipe, epochs=1, data=replace(tiny_recipe.data, cutmix=0.5))
    with pytest.raises(TorchcapsError, match="cross_entropy"):
        start(mixed, tmp_path / "margin")
    both = [
        start(
            replace(recipe, task=Classify(loss="cross_entropy", reconstruction=0)), tmp_path / name
        )
        for name, recipe in (("mixed", mixed), ("plain", replace(tiny_recipe, epochs=1)))
    ]
    assert both[0].metrics[-1]["train_loss"] > both[1].metrics[-1]["train_loss"]
    with pytest.raises(TorchcapsError, match="cannot reconstruct a mixture"):
        start(replace(mixed, task=Classify(loss="cross_entropy")), tmp_path / "drawn")
    with pytest.raises(TorchcapsError, match="at least 0 and at most 1"):
        start(replace(mixed, data=replace(mixed.data, cutmix=2.0)), tmp_path / "more")


def test_the_default_recipe_is_a_capsnet():
    assert Recipe().model == model_config("capsnet")


def test_choosing_on_the_test_split_must_be_named(tiny_recipe, tmp_path):
    wrong = replace(tiny_recipe, stop_on="test")
    with pytest.raises(TorchcapsError, match="chooses the model on the test split"):
        start(wrong, tmp_path / "a")
    run = start(replace(wrong, protocol="paper", target_accuracy=0.01, epochs=3), tmp_path / "b")
    lines = (run.folder / "metrics.jsonl").read_text()
    assert "test_accuracy" in lines and "val_accuracy" not in lines
    record = run.record()
    assert record["epochs_trained"] == 1 and record["recipe"]["protocol"] == "paper"


def test_a_run_with_two_groups_of_parameters_resumes_to_the_same_bits(tiny_recipe, tmp_path):
    spec = OptimizerSpec(kind="sgd", lr=0.05, weight_decay=5e-4, nesterov=True, decay_all=False)
    recipe = replace(tiny_recipe, optimizer=spec)
    whole = start(recipe, tmp_path / "whole")
    training = begun(recipe, tmp_path / "cut")
    for _ in range(5):
        training.step()
    training.save()
    resumed = resume(tmp_path / "cut")
    one, other = (load_file(r.model_folder / "model.safetensors") for r in (whole, resumed))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_that_is_being_trained_is_not_resumed(tiny_recipe, tmp_path):
    training = begun(tiny_recipe, tmp_path / "run")
    training.save()
    with ThreadPoolExecutor(1) as pool, claimed(training.run.folder, tiny_recipe):
        with pytest.raises(TorchcapsError, match="another process is training it"):
            pool.submit(resume, training.run.folder).result()
    assert resume(training.run.folder).record()["results"]


def test_the_first_of_several_processes_claims_for_all(tiny_recipe, tmp_path, monkeypatch):
    pair = replace(tiny_recipe, hardware=HardwareSpec(devices=2))

    def other(recipe: Recipe) -> bool:
        with claimed(tmp_path / "run", recipe):
            return True

    with ThreadPoolExecutor(1) as pool, claimed(tmp_path / "run", tiny_recipe):
        with pytest.raises(TorchcapsError):
            pool.submit(other, tiny_recipe).result()
        with pytest.raises(TorchcapsError):  # another launch of the same run
            pool.submit(other, pair).result()
        monkeypatch.setenv("RANK", "1")
        assert pool.submit(other, pair).result()
        assert other(tiny_recipe)  # whoever has it may claim again


def test_a_run_can_count_steps_and_validate_between_epochs(tiny_recipe, tmp_path):
    recipe = replace(tiny_recipe, steps=25, validate_every=10)
    whole = start(recipe, tmp_path / "whole")
    assert [line["step"] for line in whole.metrics] == [10, 20, 25]
    assert whole.record()["steps_trained"] == 25 and whole.record()["epochs_trained"] == 1
    training = begun(recipe, tmp_path / "cut")
    for _ in range(13):
        training.step()
    training.save()
    cut = resume(tmp_path / "cut")
    assert all(torch.equal(weights(whole)[n], t) for n, t in weights(cut).items())
    assert whole.metrics[1:] == cut.metrics
    by_epochs = start(replace(tiny_recipe, steps=40), tmp_path / "epochs")
    same(by_epochs, start(tiny_recipe, tmp_path / "plain"))


def test_rmsprop_own_rates_and_an_exponential_decay_resume_to_the_same_bits(tiny_recipe, tmp_path):
    recipe = replace(
        tiny_recipe,
        optimizer=OptimizerSpec(kind="rmsprop", lr=1e-3, rates=("decoder=0.1", "classes=3")),
        schedule=ScheduleSpec(kind="exponential", gamma=0.5, period=10, final=0.1),
    )
    whole = start(recipe, tmp_path / "whole")
    rates = [line["lr"] for line in whole.metrics]
    training = begun(recipe, tmp_path / "cut")
    for _ in range(9):
        training.step()
    lrs = sorted({round(g["lr"] / 0.5**0.8, 8) for g in training.context.optimizer.param_groups})
    assert lrs == [0.0001, 0.001, 0.003]
    training.save()
    same(whole, resume(tmp_path / "cut"))
    assert rates[-1] == pytest.approx(0.1 * 1e-4) or rates[-1] == pytest.approx(1e-4)


def test_sizes_that_the_data_decides_cannot_be_given_in_vain(tiny_recipe, tmp_path):
    wrong = replace(tiny_recipe, model=replace(tiny_recipe.model, image_size=64))
    with pytest.raises(TorchcapsError, match="model.image_size=64, but digits has 28"):
        start(wrong, tmp_path / "run")


def test_a_run_from_python_is_marked_as_one_from_the_command_line(
    tiny_recipe, tmp_path, registered
):
    registered.recipe("little/a", replace(tiny_recipe, epochs=1, paper="little", row="A"))
    from torchcaps.training.registry import get_recipe

    plain = start(get_recipe("little/a"), tmp_path / "plain").record()
    assert plain["recipe"]["protocol"] == "ours" and "modified" not in plain
    made = replace(get_recipe("little/a"), batch_size=400, seed=3)
    changed = start(made, tmp_path / "changed").record()
    assert changed["recipe"]["protocol"] == "modified"
    assert changed["modified"] == ["batch_size=400"] and changed["digest"] != plain["digest"]
    free = replace(get_recipe("little/a"), seed=5, metrics=("accuracy",), checkpoint_seconds=1.0)
    same_recipe = start(free, tmp_path / "free").record()
    assert same_recipe["digest"] == plain["digest"] and "modified" not in same_recipe
    stranger = replace(made, name="robustness/nothing")
    assert start(stranger, tmp_path / "x").record()["modified"] == ["name=robustness/nothing"]


def test_unfinished_runs_can_be_listed_and_loaded(tiny_recipe, tmp_path):
    training = begun(tiny_recipe, tmp_path / "runs/a")
    for _ in range(3):
        training.step()
    training.save()
    (run,) = Run.list(tmp_path / "runs")
    assert run.status == "stopped"
    with ThreadPoolExecutor(1) as pool, claimed(run.folder, tiny_recipe):
        assert pool.submit(lambda: run.status).result() == "training"
    with pytest.raises(TorchcapsError, match="has not validated yet"):
        torchcaps.load(run.folder)
    last = torchcaps.load(run.folder, "last")
    own = training.context.task.model.state_dict()
    assert all(torch.equal(t, own[n]) for n, t in last.state_dict().items())
    finished = resume(run.folder)
    assert finished.status == "finished"
    best = torchcaps.load(run.folder).state_dict()
    assert all(torch.equal(best[n], t) for n, t in weights(finished).items())
    later = start(tiny_recipe, tmp_path / "runs/group/b")
    assert [r.folder for r in Run.list(tmp_path / "runs")] == [later.folder, run.folder]


def test_a_bf16_run_is_recorded_and_evaluated_in_one_arithmetic(tiny_recipe, tmp_path):
    from torchcaps.training.evaluate import evaluate_metrics

    recipe = replace(
        tiny_recipe, epochs=1, hardware=HardwareSpec(precision="bf16"),
        metrics=("linear", "accuracy:rotated:digits,degrees=30"),
    )  # fmt: skip
    run = start(recipe, tmp_path / "run")
    lines = {(r["data"], r["split"], r["metric"]): r["value"] for r in run.record()["results"]}
    validated = run.metrics[0]
    for (data, split, metric), value in lines.items():  # also what chose the weights
        if data == "digits" and split == "val":
            assert validated[f"val_{metric}"] == value
    for split in ("test", "val"):
        found = evaluate(run.folder, split=split)
        numbers = found["numbers"]
        assert found["split"] == split and numbers == {
            m: v for (d, s, m), v in lines.items() if d == "digits" and s == split and m in numbers
        }
    again = list(evaluate_metrics(run.folder, list(recipe.metrics)))
    assert {
        (r["data"], r["split"], r["metric"]): r["value"] for a in again for r in a["results"]
    }.items() <= lines.items()


def test_a_machine_with_slurm_is_not_a_job_of_it(tiny_recipe, tmp_path, monkeypatch):
    """Lightning warns where it finds `srun`, and would take the ranks of any SLURM job."""
    (tmp_path / "srun").write_text("#!/bin/sh\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert make_fabric(tiny_recipe.hardware).world_size == 1
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_LOCALID", "3")
    assert make_fabric(tiny_recipe.hardware).global_rank == 0


def test_a_split_without_images_is_not_evaluated(digits):
    nothing = replace(digits, test=digits.test[:0])
    with pytest.raises(TorchcapsError, match="no images in its split 'test'"):
        evaluate("capsnet-small.digits", nothing)


def test_choose_the_last(tiny_recipe, tmp_path, monkeypatch):
    """The weights after the last epoch, though an earlier one was better."""
    said = iter([0.2, 0.9, 0.4])
    original = ClassifyTask.evaluate

    def evaluate(self, rows):  # the evaluation at the end has numbers of its own
        told = next(said, None)
        return {"accuracy": told, "loss": 1.0} if told else original(self, rows)

    monkeypatch.setattr(ClassifyTask, "evaluate", evaluate)
    run = start(replace(tiny_recipe, epochs=3, choose="last"), tmp_path / "last")
    assert [line["val_accuracy"] for line in run.metrics] == [0.2, 0.9, 0.4]
    assert run.record()["chosen_epoch"] == 2
