"""Unequal epochs, step budgets and late joiners by device tier."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlib.methods import Curriculum, LocalEpochs, Server, StepBudget
from fedlib.methods.tiers import tiers
from fedlib.spec import InputError

H, A = [1.0] * 6, [[1.0, 0.0]] * 6
SIZES = [10, 20, 30, 40, 50, 60]


@given(st.integers(1, 60), st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 5))
def test_tiers_have_their_shares(clients, parts, seed):
    shares = tuple(part / sum(parts) for part in parts)
    tier = tiers(seed, clients, shares)
    assert len(tier) == clients and set(tier) <= set(range(len(shares)))
    assert np.abs(np.bincount(tier, minlength=len(shares)) - np.array(shares) * clients).max() <= 1 + 1e-9


def test_epochs_are_drawn_for_each_client_and_round(quadratics):
    q = quadratics(H, A, SIZES)
    run = q.play(rounds=100, lr=0.01, methods=(LocalEpochs(low=2, high=4),))
    mean = np.mean(run.series["gradients"]["value"]) / sum(SIZES)
    assert mean == pytest.approx(3, abs=4 * np.sqrt(2 / 3 / 100 / 3))  # weights of the sizes: about 3 clients' worth
    assert len(set(run.series["gradients"]["value"])) > 20
    run = q.play(rounds=1, methods=(LocalEpochs(low=3, high=3),))
    assert run.series["gradients"]["value"] == [3 * sum(SIZES)]


def test_a_step_budget_stops_the_weak(quadratics):
    q = quadratics(H, A, SIZES)
    shares = (0.5, 0.5)
    run = q.play(rounds=1, epochs=3, batch_size=5, methods=(StepBudget(shares=shares, steps=(10**6, 4)),))
    tier = tiers(0, 6, shares)
    expected = sum(min(3 * n, 4 * 5 if weak else 3 * n) for n, weak in zip(SIZES, tier, strict=True))
    assert run.series["gradients"]["value"] == [expected] and 0 < tier.sum() < 6


def test_strong_devices_start_and_the_weak_join(quadratics):
    q = quadratics(H, A, SIZES)
    shares = (1 / 3, 2 / 3)
    run = q.play(rounds=4, methods=(Curriculum(shares=shares, join=(1, 3)),))
    strong = int(np.array(SIZES)[tiers(0, 6, shares) == 0].sum())
    assert run.series["gradients"]["value"] == [strong, strong, sum(SIZES), sum(SIZES)]
    assert run.series["bytes_up"]["value"] == [2 * 8, 2 * 8, 6 * 8, 6 * 8]


def test_a_sampled_round_is_filled_up_with_clients_that_have_joined():
    method, shares = Curriculum(shares=(0.4, 0.6), join=(1, 5)), (0.4, 0.6)
    strong = set(np.flatnonzero(tiers(7, 10, shares) == 0))
    for round in (1, 4, 5):
        server = Server(None, 0, 10, np.ones(10), 3, {}, seed=7, round=round)
        chosen = method.select(server, [7, 3, 5])
        assert len(set(chosen)) == 3
        assert set(chosen) <= strong if round < 5 else chosen == [7, 3, 5]


def test_bad_input():
    with pytest.raises(InputError, match="LocalEpochs.high = 1"):
        LocalEpochs(low=2, high=1)
    with pytest.raises(InputError, match="one for each of shares"):
        StepBudget(shares=(0.5, 0.5), steps=(3,))
    with pytest.raises(InputError, match="add up to 1"):
        StepBudget(shares=(0.5, 0.6), steps=(3, 4))
    with pytest.raises(InputError, match="the earliest is 1"):
        Curriculum(join=(2, 3))
