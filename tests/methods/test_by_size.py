import numpy as np
import pytest
import torch
from scipy import stats

from fedlib.measures import Survival
from fedlib.methods import BySize, Server

SIZES = np.array([10, 20, 30, 40])


def server(round=1, sizes=SIZES, per_round=1):
    return Server(
        w=torch.zeros(5), trained=5, clients=len(sizes), sizes=sizes, per_round=per_round, state={}, seed=3,
        round=round,
    )  # fmt: skip


def test_by_size_draws_in_proportion():
    drawn = [BySize().select(server(r), [0]) for r in range(2000)]
    counts = np.bincount(np.concatenate(drawn), minlength=4)
    assert stats.chisquare(counts, 2000 * SIZES / SIZES.sum()).pvalue > 0.001
    assert stats.chisquare(counts).pvalue < 1e-6
    assert all(len(set(BySize().select(server(r), [0, 1, 2]))) == 3 for r in range(50))


def test_by_size_averages_with_equal_weights(quadratics):
    q = quadratics(h=[1.0, 3.0], a=[[1.0, 2.0], [-1.0, 0.0]], sizes=[30, 10])
    run = q.play(rounds=1, lr=0.1, methods=(BySize(),))
    torch.testing.assert_close(run.w, (0.1 * q.h[:, None] * q.a).mean(0))
    assert run.series["bytes_up"]["value"] == [2 * 4 * 2]


def test_by_size_is_measured_by_the_updates_themselves_and_their_equal_weights(quadratics):
    q = quadratics(h=[1.0, 3.0], a=[[1.0, 2.0], [-1.0, 0.0]], sizes=[30, 10])
    plain, equal = (q.play(rounds=1, methods=methods, measures=(Survival(),)).series for methods in ((), (BySize(),)))
    assert equal["survival"] == plain["survival"]
    assert equal["survival_weighted"]["value"] == pytest.approx(equal["survival"]["value"])
    assert plain["survival_weighted"]["value"] != pytest.approx(plain["survival"]["value"], rel=0.01)
