import torch

import torchcaps
from tests.conftest import TINY_CAPSNET
from tests.metrics.test_outliers import Copies
from torchcaps.metrics.attacks import detect, perturb
from torchcaps.metrics.base import prepare


def test_attacks_stay_within_epsilon_and_find_the_boundary():
    images = torch.full((6, 1, 4, 4), 0.45)
    images[3:] = 0.2
    labels = torch.ones(6).long()  # class 1 is darker than a half
    for kind in ("fgsm", "pgd"):
        moved = perturb(Copies(), images, labels, kind, 0.1)
        assert (moved - images).abs().max() <= 0.1 + 1e-6
        far = perturb(Copies(), images, labels, kind, 0.4)
        right = [Copies().encode(x).logits.argmax(1).eq(1).float().mean() for x in (moved, far)]
        assert right == [0.5, 0.0]


def test_the_detector_rejects_badly_reconstructed_images():
    images, labels = torch.full((4, 1, 4, 4), 0.45), torch.ones(4).long()
    clean = torch.full((10, 1, 4, 4), 0.3)
    found = detect(Copies(), images, labels, clean, "fgsm", 0.1)
    assert found.accuracy == 0 and found.guarded == 1 and found.threshold == 0


def test_attacks_work_without_a_decoder():
    model = torchcaps.create_model("capsnet", **{**TINY_CAPSNET, "reconstruction": "none"})
    images, labels = torch.rand(4, 1, 28, 28), torch.arange(4)
    assert perturb(model, images, labels, "fgsm").shape == images.shape


def test_a_support_vector_machine_is_attacked_through_the_model(digits):
    model = torchcaps.create_model(
        "sparse", backbone="norm", num_types=2, hidden=(16,), num_caps=(5,)
    ).eval()
    few = torchcaps.data.Dataset("few", *(digits.test[slice(0, 80)],) * 3, digits.classes)
    numbers = {}
    for text in (
        "svm-adversarial,jobs=1,gamma=0,c=1000,images=40,epsilon=0.0001",
        "svm-adversarial,jobs=1,gamma=0,c=1000,images=40,epsilon=0.3",
    ):
        (taken,) = prepare([text], few, "few")
        taken.check(model)
        taken.metric.learn(model, taken.data)
        numbers[text] = taken.metric.score(model, few, few.test)
        assert taken.metric.counted(few.test) == 40
    little, much = numbers.values()
    assert little["svm_pgd_accuracy"] > 0.9  # it was fitted on the same images
    assert much["svm_pgd_accuracy"] <= much["svm_fgsm_accuracy"] < little["svm_fgsm_accuracy"]
