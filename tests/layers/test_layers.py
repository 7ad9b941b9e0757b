import torch

from torchcaps.functional import squash
from torchcaps.layers import DenseCaps, MLPDecoder, PrimaryCaps


def test_a_primary_capsule_is_channels_at_one_position():
    """The classic mistake is to view [B,C,H,W] as capsules: then a pose spans positions."""
    layer = PrimaryCaps(3, num_types=5, out_dim=4, kernel_size=3, stride=2)
    features = torch.randn(2, 3, 11, 11)
    poses = layer(features)
    maps = layer.conv(features)
    assert poses.shape == (2, 5, 5, 5, 4)
    for y, x, kind in ((0, 0, 0), (4, 2, 3), (1, 3, 4)):
        expected = squash(maps[:, 4 * kind : 4 * kind + 4, y, x])
        torch.testing.assert_close(poses[:, y, x, kind], expected)


def test_dense_capsules_own_and_shared_transforms():
    poses = torch.randn(2, 6, 4)
    own, shared = DenseCaps(6, 4, 3, 5), DenseCaps(6, 4, 3, 5, shared=True)
    assert own.weight.numel() == 6 * shared.weight.numel()
    with torch.no_grad():
        own.weight.copy_(shared.weight.expand_as(own.weight))
    for a, b in zip(own(poses), shared(poses), strict=True):
        torch.testing.assert_close(a, b)


def test_a_decoder_draws_several_objects_at_once():
    decoder = MLPDecoder(6, (8,), (1, 5, 5))
    units = torch.randn(4, 2, 6)
    drawn = decoder(units)
    assert drawn.shape == (4, 2, 1, 5, 5) and 0 <= drawn.min() and drawn.max() <= 1
    torch.testing.assert_close(drawn[:, 1], decoder(units[:, 1]))
