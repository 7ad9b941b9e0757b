"""Successive halving: who falls behind at which rung."""

from torchcaps.sweeps.early import Halving


def higher(new, old):
    return old is None or new >= old


def three(value):
    """Three validations of which the second is the best."""
    return [value / 2, value, value / 2]


def test_the_first_trial_continues_and_worse_ones_end():
    halving = Halving(higher)
    assert not halving.behind(0, three(0.5))
    assert not halving.behind(1, [0.4, 0.4])  # too early to say
    assert halving.behind(1, three(0.4))
    assert not halving.behind(2, three(0.6))
    assert halving.rungs == {3: {0: 0.5, 1: 0.4, 2: 0.6}}


def test_the_best_third_continues():
    halving = Halving(higher)
    for number in range(9):
        halving.behind(number, three(number / 10))
    assert not halving.behind(9, three(0.65))  # third of ten
    assert halving.behind(10, three(0.3))


def test_a_rung_counts_the_best_value_up_to_it_and_once():
    halving = Halving(higher)
    assert not halving.behind(0, [*three(0.5), 0.1, 0.9, 0.1])
    assert halving.rungs[6] == {0: 0.9}
    assert not halving.behind(0, [*three(0.5), 0.1, 0.9, 0.1, 0.1])
    assert halving.behind(1, [*three(0.6), 0.7, 0.8, 0.8])  # ahead at first, behind at six


def test_lower_can_be_better():
    halving = Halving(lambda new, old: old is None or new <= old)
    assert not halving.behind(0, [0.9, 0.5, 0.7])
    assert halving.behind(1, [0.9, 0.6, 0.7]) and not halving.behind(2, [0.9, 0.4, 0.7])
