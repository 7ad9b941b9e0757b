"""Models that are too large: refused before they are built, with alternatives that are not."""

import resource
import subprocess
import sys
from typing import Any

import pytest
import torch

import torchcaps
from torchcaps.errors import TorchcapsError
from torchcaps.models import size
from torchcaps.models.registry import LIMIT, MODELS, build, model_config
from torchcaps.models.size import alternatives, check_size, size_of
from torchcaps.training.loop import MANY_PARAMETERS
from torchcaps.training.recipe import DataSpec, Recipe
from torchcaps.training.setup import set_up

LARGE: dict[str, Any] = {"image_size": 224, "in_channels": 3, "num_classes": 196}


def sized(config):
    """The size of a configuration, or a skip where an extra is missing."""
    return size_of(config) or pytest.skip("an extra is not here")


@pytest.mark.parametrize("name", sorted(MODELS))
def test_registered_models_are_far_below_the_limit(name):
    assert sized(model_config(name)).parameters < LIMIT / 10


@pytest.mark.parametrize("name", ["capsnet-small", "inverted-small", "mcae", "vae", "scae"])
def test_the_estimate_is_the_number_of_parameters(name):
    assert sized(model_config(name)).parameters == build(model_config(name)).num_parameters


def test_estimating_changes_no_random_numbers():
    torch.manual_seed(3)
    expected = build(model_config("mcae-pretrain-small")).state_dict()
    torch.manual_seed(3)
    got = torchcaps.create_model("mcae-pretrain-small").state_dict()
    assert all(torch.equal(got[name], tensor) for name, tensor in expected.items())


def test_a_large_capsnet_is_refused_in_seconds_and_little_memory():
    """In a process of its own: nothing may be allocated on the way to the error."""
    code = (
        "import time; start = time.time()\n"
        "import torchcaps\n"
        "try: torchcaps.create_model('capsnet', image_size=224, in_channels=3, num_classes=196)\n"
        "except torchcaps.errors.TorchcapsError as error: print(error)\n"
        "from pathlib import Path\n"
        "status = Path('/proc/self/status')\n"  # rusage would count the process that started it
        "lines = status.read_text().splitlines() if status.exists() else ['VmHWM: 0 kB']\n"
        "print(next(line.split()[1] for line in lines if line.startswith('VmHWM')))"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("A capsnet for 3x224x224 images and 196 classes would have")
    assert "8.8 billion parameters" in lines[0]
    assert "98 % are in its layer classes (DenseCaps)" in lines[1]
    assert "346,112 children to 196 parents" in lines[1]
    assert lines[-2] == "limit=0 builds it all the same."
    assert int(lines[-1]) < 1_000_000  # kilobytes
    assert after.ru_utime - before.ru_utime < 5


@pytest.mark.parametrize("name", sorted(n for n, entry in MODELS.items() if entry.listed))
def test_every_advice_builds(name):
    config = model_config(name, **LARGE)
    known = sized(config)
    if known.parameters <= LIMIT:
        assert torchcaps.create_model(name, **LARGE).num_parameters == known.parameters
        return
    with pytest.raises(TorchcapsError, match="These fit:"):
        torchcaps.create_model(name, **LARGE)
    advised = alternatives(name, config, known.classifies, LIMIT / 10)
    assert len(advised) >= 2
    for other, changes, parameters in advised:
        model = torchcaps.create_model(other, **{**LARGE, **changes})
        assert model.num_parameters == parameters <= MANY_PARAMETERS
        assert ("logits" in model.provides) == known.classifies


def test_limit_is_an_argument():
    with pytest.raises(TorchcapsError, match=r"A convnet-avg-small for 1x28x28 .* parameters"):
        torchcaps.create_model("convnet-avg-small", limit=1000)
    assert torchcaps.create_model("convnet-avg-small", limit=0).num_parameters > 1000


def test_memory_that_is_not_free(monkeypatch):
    parameters = sized(model_config("capsnet-small")).parameters
    monkeypatch.setattr(size, "free_memory", lambda device: 5 * parameters)
    check_size("capsnet-small", model_config("capsnet-small"))  # its weights are 4 bytes each
    with pytest.raises(TorchcapsError, match=r"to train with Adam\. 0\.\d GB are free\."):
        check_size("capsnet-small", model_config("capsnet-small"), trained=True)


def test_training_refuses_a_large_model_before_it_is_built(monkeypatch):
    monkeypatch.setattr(size, "free_memory", lambda device: 1e6)
    recipe = Recipe(name="capsnet", model=model_config("capsnet"), data=DataSpec(name="digits"))
    with pytest.raises(TorchcapsError, match=r"fit\(create_model\(…, limit=0\), data\) trains it"):
        set_up(recipe)
