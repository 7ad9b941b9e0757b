"""Successive halving: who falls behind at which rung."""

from torchcaps.sweeps.early import Halving


def higher(new, old):
    return old is None or new >= old


def test_the_first_trial_continues_and_worse_ones_end():
    halving = Halving(higher)
    assert not halving.behind(0, [0.5])
    assert halving.behind(1, [0.4])
    assert not halving.behind(2, [0.6])
    assert halving.rungs == {1: {0: 0.5, 1: 0.4, 2: 0.6}}


def test_the_best_third_continues():
    halving = Halving(higher)
    for number in range(9):
        halving.behind(number, [number / 10])
    assert not halving.behind(9, [0.65])  # third of ten
    assert halving.behind(10, [0.3])


def test_a_rung_counts_the_best_value_up_to_it_and_once():
    halving = Halving(higher)
    assert not halving.behind(0, [0.5, 0.9, 0.1])
    assert halving.rungs[3] == {0: 0.9}
    assert not halving.behind(0, [0.5, 0.9, 0.1, 0.1])
    assert halving.behind(1, [0.6, 0.7, 0.8])  # ahead at the first rung, behind at the second


def test_lower_can_be_better():
    halving = Halving(lambda new, old: old is None or new <= old)
    assert not halving.behind(0, [0.5])
    assert halving.behind(1, [0.6]) and not halving.behind(2, [0.4])
