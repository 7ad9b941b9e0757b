import pytest
import torch
from torch.nn import functional as F

from torchcaps.errors import TorchcapsError
from torchcaps.functional import squash
from torchcaps.layers import ConvCaps, DenseCaps, MLPDecoder, PointwiseCaps, PrimaryCaps
from torchcaps.layers.capsules import ClassCaps
from torchcaps.layers.parts import PartEncoder, PerCapsule
from torchcaps.layers.routers import ROUTERS, router_with
from torchcaps.layers.sets import Attend, PresentBlock, PresentSet
from torchcaps.layers.stems import by_windows
from torchcaps.routing.self import EPS


def test_a_primary_capsule_is_channels_at_one_position():
    """The classic mistake is to view [B,C,H,W] as capsules: then a pose spans positions."""
    layer = PrimaryCaps(in_channels=3, num_types=5, out_dim=4, kernel_size=3, stride=2)
    features = torch.randn(2, 3, 11, 11)
    poses = layer(features)
    maps = layer.conv(features)
    assert poses.shape == (2, 5, 5, 5, 4)
    for y, x, kind in ((0, 0, 0), (4, 2, 3), (1, 3, 4)):
        expected = squash(maps[:, 4 * kind : 4 * kind + 4, y, x])
        torch.testing.assert_close(poses[:, y, x, kind], expected)


def test_dense_capsules_own_and_shared_transforms():
    poses = torch.randn(2, 6, 4)
    own, shared = (
        DenseCaps(in_caps=6, in_dim=4, out_caps=3, out_dim=5),
        DenseCaps(in_caps=6, in_dim=4, out_caps=3, out_dim=5, shared=True),
    )
    assert own.weight.numel() == 6 * shared.weight.numel()
    with torch.no_grad():
        own.weight.copy_(shared.weight.expand_as(own.weight))
    outputs = zip(own(poses, coupling=True), shared(poses, coupling=True), strict=True)
    for a, b in outputs:
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("routing", sorted(ROUTERS))
def test_shared_transforms_take_a_grid_of_any_size(routing):
    """Copies of a grid side by side are more children with the same votes: uniform routing and
    couplings that depend on the pose alone give the same parents."""
    options = {"in_dim": 4, "out_caps": 3, "out_dim": 4, "routing": routing, "shared": 2}
    small, large = (DenseCaps(in_caps=n, **options) for n in (8, 32))
    large.load_state_dict(small.state_dict())
    grid, active = torch.randn(2, 2, 2, 2, 4), torch.rand(2, 2, 2, 2)
    wide, more = grid.repeat(1, 2, 2, 1, 1), active.repeat(1, 2, 2, 1)
    for a, b in zip(small(wide, more), large(wide, more), strict=True):
        torch.testing.assert_close(a, b)
    if routing == "self":
        torch.testing.assert_close(small(wide, more).poses, small(grid, active).poses)


def test_primary_capsules_on_a_grid():
    layer = PrimaryCaps(
        in_channels=3, num_types=2, out_dim=4, kernel_size=3, stride=1, squash=False, grid=3
    )
    features = torch.randn(2, 3, 11, 14)
    poses, maps = layer(features), layer.conv(features)
    assert poses.shape == (2, 3, 3, 2, 4)
    torch.testing.assert_close(poses[:, 0, 2, 1], maps[:, 4:, :3, 8:].mean((2, 3)))


def test_class_capsules_keep_precision():
    layer = ClassCaps(in_caps=3, in_dim=5, num_classes=7, route_std=1.0).double()
    poses = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    active = torch.rand(2, 4, 3, dtype=torch.float64)
    shares = torch.einsum("blid,idj->blij", poses, layer.route_weight) + layer.route_bias
    expected = (shares.softmax(-1) * active[..., None]).sum(2) / (active.sum(2)[..., None] + EPS)
    activations = layer(poses, active).activations
    torch.testing.assert_close(activations, expected, atol=1e-14, rtol=1e-12)
    half = layer.to(torch.bfloat16)(poses.bfloat16(), active.bfloat16()).activations
    assert half.dtype == torch.float32


def test_decoder_reconstructs_several_objects():
    decoder = MLPDecoder(in_units=6, hidden=(8,), image_shape=(1, 5, 5))
    units = torch.randn(4, 2, 6)
    drawn = decoder(units)
    assert drawn.shape == (4, 2, 1, 5, 5) and 0 <= drawn.min() and drawn.max() <= 1
    torch.testing.assert_close(drawn[:, 1], decoder(units[:, 1]))


ROUTINGS = sorted(ROUTERS)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("matrix", [False, True])
def test_every_layer_takes_every_routing(routing, matrix):
    options = {"routing": router_with(routing, num_iters=2), "matrix": matrix}
    grid, active = torch.randn(2, 5, 4, 3, 4, requires_grad=True), torch.rand(2, 5, 4, 3)
    layers = {
        (2, 2, 2): ConvCaps(
            in_caps=3,
            in_dim=4,
            out_caps=6,
            out_dim=4,
            kernel_size=3,
            stride=2,
            padding=1,
            **options,
        )(grid[:, :4], active[:, :4], coupling=True),
        (2, 20): PointwiseCaps(in_caps=3, in_dim=4, out_caps=6, out_dim=4, **options)(
            grid.flatten(1, 2), active.flatten(1, 2), coupling=True
        ),
        (2,): DenseCaps(in_caps=60, in_dim=4, out_caps=6, out_dim=4, shared=3, **options)(
            grid, active, coupling=True
        ),
    }
    for shape, (poses, activations, coupling) in layers.items():
        assert poses.shape == (*shape, 6, 4)
        if len(shape) == 3 and routing in ("em", "vb"):  # one for each child, over all windows
            assert coupling.sum((1, 2, 3, 4)).tolist() == pytest.approx([4 * 4 * 3] * 2)
        else:
            torch.testing.assert_close(coupling.sum(-1), torch.ones_like(coupling[..., 0]))
        assert (activations is None) == (routing in ("dynamic", "uniform", "inverted"))
        loss = poses.square().sum() + (0 if activations is None else activations.sum())
        assert torch.autograd.grad(loss, grid)[0].abs().sum() > 0


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_parameter_gets_a_gradient(routing):
    layer = ConvCaps(
        in_caps=2,
        in_dim=4,
        out_caps=3,
        out_dim=4,
        kernel_size=3,
        routing=router_with(routing, num_iters=2, bias=True),
    )
    poses, active, _ = layer(torch.randn(2, 5, 5, 2, 4), torch.rand(2, 5, 5, 2))
    loss = poses.square().sum() + (0 if active is None else active.square().sum())
    loss.backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_a_conv_layer_is_a_dense_layer_in_each_window():
    conv = ConvCaps(
        in_caps=2, in_dim=4, out_caps=3, out_dim=4, kernel_size=3, stride=2, routing="self"
    )
    grid, active = torch.randn(2, 5, 5, 2, 4), torch.rand(2, 5, 5, 2)
    dense = DenseCaps(in_caps=18, in_dim=4, out_caps=3, out_dim=4, routing="self")
    dense.load_state_dict(conv.state_dict())
    poses, activations, _ = conv(grid, active)
    window = (slice(None), slice(2, 5), slice(0, 3))
    alone = dense(grid[window], active[window])
    torch.testing.assert_close(poses[:, 1, 0], alone.poses)
    torch.testing.assert_close(activations[:, 1, 0], alone.activations)


def test_invalid_layers_raise():
    with pytest.raises(TorchcapsError, match="square and keep their size"):
        DenseCaps(in_caps=4, in_dim=6, out_caps=2, out_dim=6, matrix=True)
    with pytest.raises(TorchcapsError, match="Did you mean 'dynamic'"):
        DenseCaps(in_caps=4, in_dim=4, out_caps=2, out_dim=4, routing="dynamc")
    with pytest.raises(TorchcapsError, match="made for 4 children.*have 8"):
        DenseCaps(in_caps=4, in_dim=4, out_caps=2, out_dim=4)(torch.randn(1, 8, 4))
    with pytest.raises(TorchcapsError, match="made for 4 children.*have 7"):
        DenseCaps(in_caps=4, in_dim=4, out_caps=2, out_dim=4, shared=2)(torch.randn(1, 7, 4))
    with pytest.raises(TorchcapsError, match="made for 36 children.*have 45"):
        ConvCaps(in_caps=4, in_dim=4, out_caps=2, out_dim=4)(torch.randn(1, 5, 5, 5, 4))
    with pytest.raises(TorchcapsError, match="no passes that layers can share"):
        DenseCaps(in_caps=4, in_dim=4, out_caps=2, out_dim=4).attend(torch.randn(1, 4, 4), None)
    with pytest.raises(TorchcapsError, match="takes no coordinates"):
        ConvCaps(in_caps=4, in_dim=4, out_caps=2, out_dim=4, routing="self", coordinates=True)
    with pytest.raises(TorchcapsError, match="activations"):
        DenseCaps(in_caps=4, in_dim=4, out_caps=2, out_dim=4, routing="em")(torch.randn(1, 4, 4))
    with pytest.raises(TorchcapsError, match="need a grid"):
        DenseCaps(in_caps=4, in_dim=4, out_caps=2, out_dim=4, coordinates=True)(
            torch.randn(1, 4, 4)
        )


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_a_convolution_by_windows_is_one(stride):
    images, weight, bias = (
        torch.randn(*shape).double().requires_grad_()
        for shape in ((2, 3, 11, 13), (7, 3, 5, 5), (7,))
    )
    maps = by_windows(images, weight, bias, stride)
    expected = F.conv2d(images, weight, bias, stride)
    torch.testing.assert_close(maps, expected)
    assert maps.is_contiguous(memory_format=torch.channels_last)
    upstream = torch.randn_like(expected)
    both = [torch.autograd.grad(t, (images, weight, bias), upstream) for t in (maps, expected)]
    torch.testing.assert_close(*both)


def test_the_bias_of_class_capsules_adds_to_the_logits():
    layer = ClassCaps(in_caps=2, in_dim=3, num_classes=4, route_std=0.0)
    with torch.no_grad():
        layer.route_bias.copy_(torch.arange(8.0).view(2, 4) ** 1.5)
    out = layer(torch.randn(1, 5, 2, 3), torch.ones(1, 5, 2), coupling=True)
    expected = layer.route_bias.softmax(1).expand(1, 5, 2, 4)
    torch.testing.assert_close(out.coupling, expected)


def test_a_part_sees_the_features_plus_their_place():
    encoder = PartEncoder(1, 12, num_parts=3, numbers=2, channels=4)
    for layer in encoder.stem:
        for parameter in layer.parameters():
            torch.nn.init.zeros_(parameter)
    torch.nn.init.normal_(encoder.where)
    where = encoder.where[None]
    attention = encoder.looks(where).flatten(2).softmax(-1)
    values = encoder.values(where).flatten(2).view(1, 3, 2, -1)
    expected = torch.einsum("bipl,bil->bip", values, attention)
    torch.testing.assert_close(encoder(torch.rand(1, 1, 12, 12)), expected)


def test_only_hard_attention_leaves_out_members_of_less_presence():
    encoder = PresentSet(dim=3, seeds=2, out=4)
    members, presence = torch.randn(1, 5, 3), torch.tensor([[1.0, 0.5, 1.0, 0.9, 0.1]])
    changed = members.clone()
    changed[:, [1, 3, 4]] += 1
    assert torch.equal(encoder(members, presence, hard=True), encoder(changed, presence, hard=True))
    assert not torch.allclose(encoder(members, presence), encoder(changed, presence), atol=1e-4)


@pytest.mark.parametrize("present", [0.0, 0.5])
def test_members_count_by_their_presence(present):
    """A block multiplies what it found of a member by its presence, then goes on."""
    block = PresentBlock(4)
    members, presence = torch.randn(1, 3, 4), torch.tensor([[1.0, present, 1.0]])
    mask = torch.zeros(1, 3)
    q, k, v = block.look(members).chunk(3, -1)
    shares = (q @ k.mT / 2).softmax(-1)
    found = block.norm((members + block.mix(shares @ v)) * presence[..., None])
    expected = block.last_norm(found + block.hidden(found))
    torch.testing.assert_close(block(members, presence, mask), expected)


def test_attention_divides_by_the_root_of_its_width():
    attend = Attend(3, 5, 8, heads=2)
    queries, members = torch.randn(1, 2, 3), torch.randn(1, 4, 5)
    q, k, v = attend.query(queries), attend.key(members), attend.value(members)
    heads = [
        (q[..., h] @ k[..., h].mT / 8**0.5).softmax(-1) @ v[..., h]
        for h in (slice(0, 4), slice(4, 8))
    ]
    hidden = attend.norm(q + torch.cat(heads, -1))
    expected = attend.last_norm(hidden + F.relu(attend.out(hidden)))
    torch.testing.assert_close(attend(queries, members), expected)


def test_coupling_is_asked_for():
    poses = torch.randn(1, 4, 4, 2, 4)
    dense = DenseCaps(in_caps=32, in_dim=4, out_caps=3, out_dim=5)
    conv = ConvCaps(in_caps=2, in_dim=4, out_caps=3, out_dim=5, kernel_size=3, stride=1)
    assert dense(poses.flatten(1, 3)).coupling is None and conv(poses).coupling is None
    assert not dense.matrix and not conv.matrix


def test_parts_start_at_the_papers_width_and_scale():
    encoder = PartEncoder(1, 12, num_parts=3, numbers=2)
    assert [m.out_channels for m in encoder.stem if isinstance(m, torch.nn.Conv2d)] == [32] * 4
    block = PerCapsule(4, 8, 100, 50)
    assert float(block.last.detach().std()) == pytest.approx(0.01, rel=0.05)
