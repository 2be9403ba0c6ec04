import numpy as np
import pytest
import torch
from examples import play
from scipy import stats

from fedlib import federation
from fedlib.experiment import Experiment
from fedlib.methods import Ditto, PowerOfChoice, Server
from fedlib.models import Linear
from fedlib.partitions import Shards
from fedlib.spec import InputError

SIZES = np.array([10, 20, 30, 40])


def server(round=1, sizes=SIZES, per_round=1):
    return Server(
        w=torch.zeros(5), trained=5, clients=len(sizes), sizes=sizes, per_round=per_round, state={}, seed=3,
        round=round, losses=lambda asked: {k: [0.3, 0.1, 0.4, 0.2][k] for k in asked},
    )  # fmt: skip


def test_power_of_choice_takes_the_largest_losses_of_its_candidates():
    chosen = PowerOfChoice(d=4).select(server(per_round=2), [1, 3])
    assert set(chosen) == {0, 2}
    for round in range(30):
        for candidates in ("size", "uniform"):
            s = server(round)
            asked = []
            s.losses = lambda ids, losses=s.losses, asked=asked: asked.extend(ids) or losses(ids)
            (chosen,) = PowerOfChoice(d=2, candidates=candidates).select(s, [1])
            assert len(set(asked)) == 2 and chosen == max(asked, key=[0.3, 0.1, 0.4, 0.2].__getitem__)
            assert s.bytes_up == 2 * 4 and s.bytes_down == 1 * 4 * 5


def test_power_of_choice_candidates_come_by_size():
    s = [server(r) for r in range(1000)]
    counts = np.bincount([PowerOfChoice(d=1).select(one, [0])[0] for one in s], minlength=4)
    assert stats.chisquare(counts, 1000 * SIZES / SIZES.sum()).pvalue > 0.001


def test_power_of_choice_in_a_run():
    """Ditto's state shows who took part."""
    e = Experiment(
        train_images=200, clients=5, per_round=2, rounds=1, partition=Shards(classes_per_client=2), batch_size=20,
        model=Linear(), methods=(PowerOfChoice(d=5), Ditto()),
    )  # fmt: skip
    s = federation.setting(e)
    losses = [federation.client_loss(e, s.w_init, k, 1) for k in range(5)]
    run = play(e)
    assert set(run.clients) == set(np.argsort(losses)[-2:].tolist())
    size = 4 * len(run.w)
    assert run.series["bytes_down"]["value"] == [5 * size]
    assert run.series["bytes_up"]["value"] == [2 * size + 5 * 4]
    assert run.series["gradients"]["value"] == [2 * sum(s.sizes[k] for k in run.clients)]


def test_on_quadratics_it_goes_to_those_with_the_largest_loss(quadratics):
    """F_k(0) = h_k/2 ||a_k||^2 is 2, 4.5 and 0.5: with d = N and m = 1 the second client alone takes a step."""
    q = quadratics(h=[1.0, 1.0, 1.0], a=[[2.0], [3.0], [1.0]], sizes=[10, 10, 10])
    run = q.play(rounds=1, lr=0.1, per_round=1, methods=(PowerOfChoice(d=3),))
    torch.testing.assert_close(run.w, 0.1 * q.a[1])


@pytest.mark.parametrize("d", [1, 4])
def test_too_few_or_too_many_candidates(quadratics, d):
    q = quadratics(h=[1.0] * 3, a=[[1.0]] * 3, sizes=[10] * 3)
    with pytest.raises(InputError, match="allowed: 2 to 3"):
        federation.check(q.experiment(per_round=2, methods=(PowerOfChoice(d=d),)))
