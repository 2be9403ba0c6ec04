import numpy as np
import pytest

from fedlib.experiment import Experiment
from fedlib.methods import Curriculum, Server
from fedlib.methods.tiers import tiers
from fedlib.spec import InputError

H, A = [1.0] * 6, [[1.0, 0.0]] * 6
SIZES = [10, 20, 30, 40, 50, 60]


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
    with pytest.raises(InputError, match="the earliest is 1"):
        Curriculum(join=(2, 3))
    few = Curriculum(shares=(0.2, 0.8))
    with pytest.raises(InputError, match="no client is in a tier that joins in round 1"):
        few.check(Experiment(clients=2, methods=(few,)))
    few.check(Experiment(clients=5, methods=(few,)))
