import torch

from torchcaps.data import Batch
from torchcaps.data.augment import CUTMIX_UNIFORMS, cutmix


def test_cutmix_against_a_loop():
    g = torch.Generator().manual_seed(0)
    u = torch.rand(40, CUTMIX_UNIFORMS, generator=g)
    one = Batch(torch.zeros(40, 2, 7, 5), torch.arange(40))
    two = Batch(torch.ones(40, 2, 7, 5), torch.arange(40).flip(0))
    mixed = cutmix(one, two, u, 0.7)
    assert torch.equal(mixed.labels, one.labels) and torch.equal(mixed.pasted, two.labels)
    for n, (area, chance, y, x) in enumerate(u.tolist()):
        side = area**0.5 if chance < 0.7 else 0.0
        top, bottom = round(y * 7 - side * 3.5), round(y * 7 + side * 3.5)
        left, right = round(x * 5 - side * 2.5), round(x * 5 + side * 2.5)
        expected = torch.zeros(7, 5)
        for row in range(7):
            for column in range(5):
                if top <= row < bottom and left <= column < right:
                    expected[row, column] = 1
        assert torch.equal(mixed.images[n], expected.expand(2, 7, 5)), n
        torch.testing.assert_close(mixed.kept[n], 1 - expected.mean())
    assert (mixed.kept < 1).any() and (mixed.kept == 1).any()
