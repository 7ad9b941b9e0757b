import numpy as np
import pytest
import torch

import torchcaps
from tests.conftest import TINY_CAPSNET
from tests.models.test_registry import small
from torchcaps.analysis import get_plot
from torchcaps.analysis.charts import Maps
from torchcaps.analysis.routing_maps import routing_map
from torchcaps.errors import TorchcapsError


def test_routing_map_adds_up_to_the_children():
    model = torchcaps.create_model("capsnet", **TINY_CAPSNET).eval()
    image = torch.rand(1, 28, 28)
    coupling, received = routing_map(model, image)
    assert coupling.shape == (72, 10) and received.shape == (10, 6, 6)
    lengths = model(image[None]).primary[0].norm(dim=-1).sum(-1)
    np.testing.assert_allclose(received.sum(0), lengths.detach().numpy(), rtol=1e-4)


@pytest.mark.parametrize("name", ["em-capsnet", "sr-capsnet", "mcae", "inverted-simple"])
def test_every_family_with_a_grid_has_a_map(name):
    model = small(name).eval()
    _, received = routing_map(model, torch.rand(1, 24, 24))
    assert received.shape[0] == 7 and received.shape[1] == received.shape[2] > 0
    below = model.encode(torch.rand(1, 1, 24, 24)).layers[-2]
    assert received.shape[1:].numel() if hasattr(received.shape, "numel") else True
    assert below.poses.shape[1:-2].numel() == received[0].size


def test_models_without_a_grid_give_a_reason(digits):
    where = get_plot("where")
    with pytest.raises(TorchcapsError, match="not routed from capsules on a grid"):
        routing_map(small("view-capsnet"), torch.rand(1, 24, 24))
    flat = torchcaps.create_model("capsnet", **TINY_CAPSNET, routing="none").eval()
    assert "couplings are equal" in where.lacks(flat, digits)
    assert "needs classes" in where.lacks(torchcaps.create_model("mcae-pretrain"), digits)
    assert "no routing" in where.lacks(torchcaps.create_model("convnet-avg-small"), digits)


def test_maps_of_any_number_of_classes():
    received = np.random.default_rng(0).random((7, 6, 6))
    figure = Maps(
        np.zeros((3, 28, 28)), received, [f"class {i}" for i in range(7)], "received"
    ).figure()
    titles = [axes.get_title() for axes in figure.axes]
    assert [title for title in titles if title] == [f"class {i}" for i in range(7)]
