import pytest
import torch

import torchcaps
from tests.models.mcae.test_model import drawn, model
from torchcaps.data import Batch, as_dataset
from torchcaps.errors import TorchcapsError, TorchcapsWarning
from torchcaps.models.mcae.patches import to_patches
from torchcaps.training.tasks import Classify, Masked, Reconstruct, make_task


def test_the_loss_is_on_removed_patches_alone(digits):
    made = model().eval()
    images = torch.rand(4, 1, 12, 12)
    batch = Batch(images, torch.zeros(4).long())
    removed, _, image = drawn(made, images)
    error = (to_patches(image, 3) - to_patches(images, 3)).square().mean(-1)
    plain, whole = (make_task(made, Masked(whole=w)).eval() for w in (False, True))
    torch.testing.assert_close(plain(batch)["loss"], error[removed].mean())
    torch.testing.assert_close(whole(batch)["loss"], error.mean())
    scaled = make_task(model(target="normalized").eval(), Masked())
    assert torch.isfinite(scaled(batch)["loss"])


def test_the_mask_is_the_tasks(digits):
    made = model()
    for ratio, visible in ((0.5, 8), (0.75, 4), (0.25, 12)):
        assert make_task(made, Masked(mask_ratio=ratio)).visible == visible
    with pytest.raises(TorchcapsError, match="leave at least one"):
        make_task(made, Masked(mask_ratio=1.0)).check(digits, 0.0)
    with pytest.raises(TorchcapsError, match="a decoder of removed patches"):
        make_task(model("finetune"), Masked()).check(digits, 0.0)
    with pytest.raises(TorchcapsError, match="a decoder"):
        make_task(model("finetune"), Reconstruct()).check(digits, 0.0)
    with pytest.raises(TorchcapsError, match="needs a model with classes"):
        make_task(made, Classify()).check(digits, 0.0)


def test_many_small_patches_are_advised_against():
    images = torch.zeros(4, 3, 96, 96, dtype=torch.uint8)
    data = as_dataset({"train": images, "test": images})
    small = torchcaps.create_model("mcae-pretrain", image_size=96, in_channels=3)
    with pytest.warns(TorchcapsWarning, match="576 patches of 4x4.*--model.patch-size 6 makes 256"):
        make_task(small, Masked()).check(data, 0.0)


def test_evaluation_removes_the_same_patches_every_time():
    task = make_task(model(), Masked())
    batch = Batch(torch.rand(4, 1, 12, 12), torch.zeros(4).long())
    assert torch.equal(task.eval()(batch)["loss"], task(batch)["loss"])
    assert not torch.equal(task.train()(batch)["loss"], task(batch)["loss"])
