import torch

from torchcaps.functional import translate
from torchcaps.models.sparse.frame import Frame, shifted


def test_what_a_frame_shows_does_not_change_with_a_shift(digits):
    images = torch.nn.functional.pad(digits.test.images[:9].float() / 255, (6, 6, 6, 6))
    frame = Frame(1, 28)
    crops, centre = frame(images)
    shift = torch.randint(-5, 6, (9, 2))
    again, there = frame(translate(images, shift))
    torch.testing.assert_close(there - centre, shift.float(), atol=2e-2, rtol=0)
    torch.testing.assert_close(again, crops, atol=2e-2, rtol=0)


def test_what_was_taken_out_can_be_put_back(digits):
    images = torch.nn.functional.pad(digits.test.images[:5].float() / 255, (6, 6, 6, 6))
    shift = torch.tensor([[0.0, 0.0], [3.0, -2.0], [1.0, 1.0], [-4.0, 0.0], [2.0, 5.0]])
    crops = shifted(images, -shift, 40)
    back = shifted(crops, shift, 40)
    inside = slice(8, 32)
    torch.testing.assert_close(
        back[..., inside, inside], images[..., inside, inside], atol=1e-4, rtol=0
    )


def test_the_way_back_has_a_gradient():
    frame = Frame(1, 20)
    images = torch.rand(2, 1, 28, 28)
    crops, centre = frame(images)
    (shifted(crops, centre, 28) - images).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in frame.parameters())


def test_an_empty_image_has_its_frame_in_the_middle():
    assert Frame(1, 28)(torch.zeros(1, 1, 40, 40))[1].tolist() == [[0.0, 0.0]]
