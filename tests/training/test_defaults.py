"""The usual training of each model."""

import pytest

from torchcaps.models.registry import MODELS, build, list_models, model_config
from torchcaps.training.defaults import defaults
from torchcaps.training.task import make_task


@pytest.mark.parametrize("name", ["mcae-pretrain", "mcae-pretrain-small", "mcae"])
def test_the_stage_of_a_masked_autoencoder_decides_its_task(name):
    kind = "masked" if "pretrain" in name else "classify"
    config = model_config(name)
    assert defaults(name, config, labelled=True).task.kind == kind
    assert defaults(config.family, config, labelled=True).task.kind == kind  # an instance


def test_small_models_can_be_trained_by_their_usual_task():
    for name in (n for n in list_models() if n.endswith("-small")):
        config = MODELS[name].config
        task = make_task(build(config), defaults(name, config, labelled=True).task)
        needs = {"masked": "inpaint", "elbo": "bound", "classify": "logits"}.get(task.config.kind)
        assert needs is None or needs in task.model.provides, name
