import torch

import torchcaps
from tests.analysis.test_outliers import Copies
from tests.conftest import TINY_CAPSNET
from torchcaps.analysis import (
    accuracy_under_attack,
    attacked,
    detected,
    draw_accuracy_under_attack,
)


def test_attacks_stay_within_epsilon_and_find_the_boundary():
    images = torch.full((6, 1, 4, 4), 0.45)
    images[3:] = 0.2
    labels = torch.ones(6).long()  # class 1 is darker than a half
    for kind in ("fgsm", "pgd"):
        moved = attacked(Copies(), images, labels, kind, 0.1)
        assert (moved - images).abs().max() <= 0.1 + 1e-6
        epsilons, accuracy = accuracy_under_attack(Copies(), images, labels, kind, (0.0, 0.1, 0.4))
        assert accuracy.tolist() == [1.0, 0.5, 0.0] and epsilons.tolist() == [0, 0.1, 0.4]
    assert draw_accuracy_under_attack({"pgd": (epsilons, accuracy)}).axes[0].get_lines()


def test_the_detector_turns_away_what_it_cannot_draw():
    images, labels = torch.full((4, 1, 4, 4), 0.45), torch.ones(4).long()
    clean = torch.full((10, 1, 4, 4), 0.3)
    found = detected(Copies(), images, labels, clean, "fgsm", 0.1)
    assert found.accuracy == 0 and found.guarded == 1 and found.threshold == 0


def test_every_measure_of_a_table_works_on_a_model_without_decoder():
    model = torchcaps.create_model("capsnet", **{**TINY_CAPSNET, "reconstruction": "none"})
    images, labels = torch.rand(4, 1, 28, 28), torch.arange(4)
    assert attacked(model, images, labels, "fgsm").shape == images.shape
