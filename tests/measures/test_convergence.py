"""Rounds to a target and the round to stop at, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlib.measures.convergence import Reached, best_round, rounds_to
from fedlib.spec import InputError

ROUNDS, VALUES = [2, 4, 6, 8, 10], [0.1, 0.6, 0.2, 0.5, 0.6]


def test_by_hand():
    assert rounds_to(ROUNDS, VALUES, 0.1) == Reached(2, False)
    assert rounds_to(ROUNDS, VALUES, 0.6) == Reached(4, False)
    assert rounds_to(ROUNDS, VALUES, 0.55, window=2) == Reached(10, False)  # one good round is not enough
    assert rounds_to(ROUNDS, VALUES, 0.4, window=3) == Reached(8, False)
    assert rounds_to(ROUNDS, VALUES, 0.7) == Reached(10, True)
    assert rounds_to(ROUNDS, VALUES, 0.0, window=5) == Reached(10, False)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0, 1), st.integers(1, 5))
def test_is_the_first_round_whose_mean_reaches_the_target(values, target, window):
    window = min(window, len(values))
    reached = rounds_to(np.arange(1, len(values) + 1), values, target, window)
    means = [np.mean(values[i - window : i]) if i >= window else -1 for i in range(1, len(values) + 1)]
    assert all(mean < target + 1e-12 for mean in means[: reached.round - 1])
    assert reached.censored == (max(means) < target) or abs(max(means) - target) < 1e-12
    assert reached.censored or means[reached.round - 1] >= target - 1e-12


def test_bad_input():
    for rounds, values in (([1, 2], [0.1]), ([], []), ([2, 1], [0.1, 0.2]), ([[1]], [[0.1]])):
        with pytest.raises(InputError, match="rounds"):
            rounds_to(rounds, values, 0.5)
    for window in (0, 3):
        with pytest.raises(InputError, match="window"):
            rounds_to([1, 2], [0.1, 0.2], 0.5, window)


def test_the_best_round_by_hand():
    assert best_round(ROUNDS, VALUES) == 4  # of two that are as good, the first
    assert best_round(ROUNDS, [0.1, 0.3, 0.2, 0.2, 0.6]) == 10
    assert best_round(ROUNDS, [0.1, 0.3, 0.2, 0.2, 0.6], patience=2) == 4  # stopped after round 8
    assert best_round(ROUNDS, [0.1, 0.3, 0.2, 0.2, 0.6], patience=3) == 10  # the third try was better
    assert best_round(ROUNDS, [0.5, 0.5, 0.6, 0.7, 0.8], patience=1) == 2  # as good is not better


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 30))
def test_patience_never_finds_more_and_is_not_missed_when_it_is_long(values, patience):
    rounds = np.arange(1, len(values) + 1)
    best, stopped = best_round(rounds, values), best_round(rounds, values, patience)
    assert values[best - 1] == max(values) and values[stopped - 1] <= values[best - 1]
    assert best_round(rounds, values, len(values)) == best
    assert stopped == best_round(rounds[: stopped + patience], values[: stopped + patience])


@pytest.mark.parametrize("arguments", [([], []), ([1, 1], [0, 0]), ([1], [0, 1]), ([1], [0], 0)])
def test_the_best_round_of_wrong_input(arguments):
    with pytest.raises(InputError):
        best_round(*arguments)
