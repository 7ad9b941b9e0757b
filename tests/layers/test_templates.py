import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from torchcaps.layers.templates import Templates, compose, composite, inverse, warped


def poses(*shape):
    return 0.6 * torch.randn(*shape, 2, 3).double()


def test_maps_are_composed_and_inverted():
    torch.manual_seed(0)
    one, two = poses(5, 7), poses(5, 7)
    point = torch.randn(5, 7, 3, 1).double()
    point[..., 2, :] = 1
    ones = torch.ones(5, 7, 1, 1).double()
    moved = two @ point
    torch.testing.assert_close(compose(one, two) @ point, one @ torch.cat([moved, ones], -2))
    far = one[one[..., :2].det().abs() > 0.05]
    whole = compose(far, inverse(far))
    torch.testing.assert_close(whole, torch.eye(2, 3).double().expand_as(whole))
    assert inverse(torch.zeros(1, 2, 3)).isfinite().all()


def test_warping_is_bilinear_sampling():
    torch.manual_seed(1)
    templates, where = torch.rand(3, 2, 5, 5).double(), poses(4, 3)
    grid = F.affine_grid(inverse(where).flatten(0, 1), [12, 1, 11, 11], align_corners=False)
    whole = templates.expand(4, 3, 2, 5, 5).flatten(0, 1)
    sampled = F.grid_sample(whole, grid, align_corners=False).view(4, 3, 2, 11, 11)
    torch.testing.assert_close(warped(templates, where, 11), sampled)


def test_graphs_have_no_grid_sample():
    """Not every exporter supports it; eager code on a CPU uses it, since it is fast."""
    torch.manual_seed(1)
    templates, where = torch.rand(3, 2, 5, 5), poses(4, 3).float()
    traced = make_fx(lambda *t: warped(*t, 11))(templates, where)
    graphs = [traced.graph]

    def keep(module, _):
        graphs.append(module.graph)
        return module.forward

    compiled = torch.compile(warped, backend=keep, fullgraph=True)
    for graph_of in (traced, lambda *t: compiled(*t, 11)):
        torch.testing.assert_close(graph_of(templates, where), warped(templates, where, 11))
    assert len(graphs) == 2
    for graph in graphs:
        assert "einsum" in str(graph) or "bmm" in str(graph)
        assert "grid_sample" not in str(graph)


@pytest.mark.parametrize("size, side", [(5, 11), (4, 7)])
def test_corners_can_be_the_centers_of_corner_pixels(size, side):
    torch.manual_seed(1)
    templates, where = torch.rand(3, 2, size, size).double(), poses(4, 3)
    grid = F.affine_grid(inverse(where).flatten(0, 1), [12, 1, side, side], align_corners=True)
    whole = templates.expand(4, 3, 2, size, size).flatten(0, 1)
    sampled = F.grid_sample(whole, grid, align_corners=True).view(4, 3, 2, side, side)
    for impl in ("auto", "reference"):  # grid_sample, and hat functions
        drawn = warped(templates, where, side, align_corners=True, impl=impl)
        torch.testing.assert_close(drawn, sampled)
    identity = torch.eye(2, 3).double().expand(1, 3, 2, 3)
    whole = warped(templates, identity, size, align_corners=True)
    torch.testing.assert_close(whole[0], templates)


def test_against_a_loop_over_images_and_parts():
    torch.manual_seed(2)
    layer = Templates(5, 4, 3, 11).double()
    where, present = poses(2, 5), torch.rand(2, 5).double()
    drawn = layer(where, present)
    for image in range(2):
        canvas = torch.zeros(3, 11, 11).double()
        for part in range(5):
            both = torch.cat([layer.color, layer.opacity], 1)[part : part + 1].sigmoid()
            grid = F.affine_grid(inverse(where[image, part])[None], [1, 4, 11, 11], False)
            placed = F.grid_sample(both, grid, align_corners=False)[0]
            over = (present[image, part] * placed[3]).clamp(max=1 - 1e-6)
            canvas = over * placed[:3] + (1 - over) * canvas
        torch.testing.assert_close(drawn[image], canvas)


def test_opaque_part_hides_parts_below():
    colors = torch.tensor([0.2, 0.9]).view(1, 2, 1, 1, 1)
    assert composite(colors, torch.ones(1, 2, 1, 1, 1)).item() == pytest.approx(0.9, abs=1e-5)
    assert torch.equal(composite(colors, torch.zeros(1, 2, 1, 1, 1)), torch.zeros(1, 1, 1, 1))
