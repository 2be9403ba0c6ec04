import math
from itertools import pairwise

import pytest

from fedlib.experiment import Experiment
from fedlib.schedules import Constant, Cosine, Exponential, Step
from fedlib.spec import InputError


def factors(schedule, rounds):
    return [schedule.factor(r, rounds) for r in range(1, rounds + 1)]


def test_factors():
    assert factors(Constant(), 3) == [1, 1, 1]
    assert factors(Exponential(decay=0.5), 4) == [1, 0.5, 0.25, 0.125]
    assert factors(Cosine(), 4) == pytest.approx([1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2])
    assert factors(Step(decay=0.1), 8) == pytest.approx([1] * 4 + [0.1] * 2 + [0.01] * 2)
    assert factors(Step(decay=0.5, milestones=(0.0, 0.9)), 2) == [0.5, 0.5]


def test_a_milestone_falls_on_its_round():
    """.55 x 100 is 55 and a little more in floating point."""
    drops = [i for i, (a, b) in enumerate(pairwise(factors(Step(milestones=(0.55,)), 100)), 2) if b < a]
    assert drops == [56]
    for outside in (1.0, -0.1, 50):
        with pytest.raises(InputError, match="milestones"):
            Step(milestones=(outside,))


def test_the_clients_step_at_the_rounds_rate(quadratics):
    """One step a round on h = 1 from 0: the distance to a shrinks by 1 - eta_r."""
    q = quadratics(h=[1.0], a=[[1.0, 2.0]], sizes=[5])
    run = q.play(rounds=3, lr=0.4, schedule=Exponential(decay=0.5))
    left = (1 - 0.4) * (1 - 0.2) * (1 - 0.1)
    assert run.w.tolist() == pytest.approx([1 - left, 2 - 2 * left])


def test_a_schedule_is_part_of_what_a_run_is():
    ids = {Experiment(schedule=s).id for s in (Constant(), Exponential(), Exponential(decay=0.99), Cosine(), Step())}
    assert len(ids) == 5
