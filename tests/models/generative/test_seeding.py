"""Objects start where parts stand together, whichever way an image is turned."""

import torch

from tests.models.generative.test_model import made
from torchcaps.models.generative.seeding import centers_of, seed_objects


def test_centers_are_found_whichever_form_fits():
    """Points of two clusters; of each, one of two forms is far away from both."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.tensor([[0.0, 5.0], [5.0, 0.0]])
    which = torch.arange(40) % 2
    near = truth[which] + 0.1 * torch.randn(40, 2, generator=generator)
    forms = torch.stack([near, torch.full_like(near, 40.0) + which[:, None]], 1)
    swapped = torch.rand(40, generator=generator) < 0.5
    forms[swapped] = forms[swapped].flip(1)
    forms[0] = torch.stack([near[0], near[0]])  # k-means begins here
    found = centers_of(forms, 2)
    torch.testing.assert_close(found[found[:, 0].argsort()], truth, atol=0.1, rtol=0)


def test_seeded_objects_stand_where_parts_do():
    model = made(objects="one", placed="solved", frames=4)
    images = torch.rand(30, 1, 28, 28).double()

    def explained():
        with torch.no_grad():
            return float(model.bound(images, noise=False).terms["parts"].mean())

    before = explained()
    seed_objects(model, images)
    assert explained() > before + 1
    assert all(torch.isfinite(p).all() for p in model.parameters())
