"""Who competes in an EM-CapsNet: as printed by default, as it was in files that say so."""

import json

import pytest
import torch

import torchcaps
from torchcaps.errors import TorchcapsError
from torchcaps.layers import EM
from torchcaps.models.registry import config_from_dict, from_folder, model_config
from torchcaps.training.recipe import Recipe, essence

TINY = {"channels": 4, "num_types": (2, 3, 2), "num_iters": 2, "image_size": 24}


@pytest.mark.parametrize("name", torchcaps.list_models("em-*", every=True))
def test_by_name_all_parents_compete(name):
    model = torchcaps.create_model(name, channels=4, num_types=(2, 3, 2))
    for layer in (model.first, model.second, model.classes):
        assert layer.router.compete == "all"


def test_a_child_shares_out_one():
    """Over all windows of a layer that see it; those of the first leave a row and a column out."""
    model = torchcaps.create_model("em-capsnet", **TINY)
    layers = model.encode(torch.rand(2, 1, 24, 24), coupling=True).layers
    assert layers[0].poses.shape[1:3] == (10, 10) and layers[1].poses.shape[1:3] == (4, 4)
    given = [layer.coupling.flatten(1).sum(1) for layer in layers[1:]]
    for sums, children in zip(given, (9 * 9 * 2, 4 * 4 * 3, 2 * 2 * 2), strict=True):
        torch.testing.assert_close(sums, torch.full_like(sums, children))


def test_the_authors_code():
    """Its options in every layer, its initial weights; and it learns."""
    torch.manual_seed(0)
    model = torchcaps.create_model("em-capsnet", official=True, **TINY)
    assert model.first.router == model.second.router == EM.official(2)
    assert model.classes.router == EM.official(2, classes=True)
    assert model.classes.coordinates == "first" and model.active.bias.unique().item() == -1
    assert model.classes.weight.std() < 0.02 and model.primary.conv.weight.std() > 0.3
    images, labels = torch.rand(8, 1, 24, 24), torch.arange(8)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(model(images).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05
    with pytest.raises(TorchcapsError, match="official=True decides routing and compete"):
        torchcaps.create_model("em-capsnet", official=True, compete="window", **TINY)


def test_variational_bayes_takes_its_place():
    model = torchcaps.create_model("em-capsnet", routing="vb", **TINY)
    output = model(torch.rand(2, 1, 24, 24))
    output.logits.sum().backward()
    assert output.logits.isfinite().all()
    assert all(p.grad is not None for p in model.parameters())
    other = torchcaps.create_model("em-capsnet", **TINY)
    other.load_state_dict(model.state_dict())
    assert not torch.allclose(
        other(torch.ones(2, 1, 24, 24)).logits, model(torch.ones(2, 1, 24, 24)).logits
    )


def test_a_file_says_who_competes_and_answers_as_it_did(tmp_path):
    old = torchcaps.create_model("em-capsnet", compete="window", **TINY).eval()
    old.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["compete"] == "window"
    again = from_folder(tmp_path)
    images = torch.rand(2, 1, 24, 24)
    torch.testing.assert_close(again(images).logits, old(images).logits)
    new = torchcaps.create_model("em-capsnet", **TINY).eval()
    new.load_state_dict(old.state_dict())
    first = [m(images).layers[2].poses for m in (old, new)]
    assert (first[0] - first[1]).abs().max() > 1e-3


def test_the_field_of_the_configuration():
    assert model_config("em-capsnet").compete == "all"
    assert config_from_dict({"family": "em-capsnet"}).compete == "all"
    printed, windows = (model_config("em-capsnet", compete=c) for c in ("all", "window"))
    assert essence(Recipe(model=printed))["model.compete"] == "all", "digests are as they were"
    assert "model.compete" not in essence(Recipe(model=windows))
    with pytest.raises(TorchcapsError, match="not one of all, window, places, released"):
        model_config("em-capsnet", compete="each")
