"""What a generative model makes up has the frequencies and places that its prior says."""

import pytest
import torch

import torchcaps
from torchcaps.models.generative.figures import by_template, colored, explained, palette
from torchcaps.models.generative.prior import sample

SIZES = {"num_caps": (3, 5), "template_size": 5, "channels": 3, "width": 8, "heads": 2, "depth": 1}


def test_selections_presences_and_places_are_the_priors():
    torch.manual_seed(0)
    model = torchcaps.create_model("generative", **SIZES, objects="one", min_std=1e-4)
    (arrangement,) = model.process.arrangements
    with torch.no_grad():
        arrangement.share.normal_(std=2)
        arrangement.presence.normal_(std=2)
        arrangement.spread.fill_(-20)
    drawn = sample(model, 4_000)
    share, dummy = arrangement.share.sigmoid(), arrangement.dummy
    for part in range(5):
        each = share[part] / (dummy[1] + share[part])  # one object at a time, each a third
        found = torch.bincount(drawn.owners[:, part], minlength=4) / 4_000
        torch.testing.assert_close(found[1:], each / 3, atol=0.03, rtol=0)
        mine = drawn.owners[:, part] == 1
        on = (drawn.presences[mine, part] > 0.5).float().mean()
        assert float(on) == pytest.approx(arrangement.presence[part, 0].sigmoid().item(), abs=0.06)
    none = drawn.poses[(drawn.owners == 0) & (drawn.presences > 0.99)]
    assert none.std(0).mean().item() == pytest.approx(dummy[0], abs=0.15)
    assert drawn.images.shape == (4_000, 1, 28, 28) and drawn.images.isfinite().all()


def test_a_seed_draws_the_same_again_through_any_number_of_layers():
    model = torchcaps.create_model("generative", **{**SIZES, "num_caps": (2, 3, 5)})
    one, again, other = (sample(model, 4, seed) for seed in (1, 1, 2))
    assert torch.equal(one.images, again.images) and not torch.equal(one.poses, other.poses)


def test_parts_have_the_color_of_their_object():
    model = torchcaps.create_model("generative", **SIZES).eval()
    colors = palette(3)
    assert colors.shape == (4, 3) and len({tuple(c) for c in colors}) == 4
    still = torch.eye(2, 3).expand(1, 5, 2, 3)
    presences = torch.zeros(1, 5)
    presences[0, 2] = 1.0
    hues = colored(model, still, presences, torch.full((1, 5), 2))
    lit = hues[0][:, 14, 14]
    torch.testing.assert_close(lit / lit.sum(), torch.from_numpy(colors[2] / colors[2].sum()))
    drawn, hues, own = explained(model, torch.rand(2, 1, 28, 28))
    assert drawn.shape == (2, 1, 28, 28) and hues.shape == own.shape == (2, 3, 28, 28)
    own = by_template(model, still, presences)[0][:, 14, 14]
    wanted = palette(5)[3]
    torch.testing.assert_close(own / own.sum(), torch.from_numpy(wanted / wanted.sum()))
