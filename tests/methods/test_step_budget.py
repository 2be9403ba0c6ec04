import pytest

from fedlib.methods import StepBudget
from fedlib.methods.tiers import tiers
from fedlib.spec import InputError

H, A = [1.0] * 6, [[1.0, 0.0]] * 6
SIZES = [10, 20, 30, 40, 50, 60]


def test_a_step_budget_stops_the_weak(quadratics):
    q = quadratics(H, A, SIZES)
    shares = (0.5, 0.5)
    run = q.play(rounds=1, epochs=3, batch_size=5, methods=(StepBudget(shares=shares, steps=(10**6, 4)),))
    tier = tiers(0, 6, shares)
    expected = sum(min(3 * n, 4 * 5 if weak else 3 * n) for n, weak in zip(SIZES, tier, strict=True))
    assert run.series["gradients"]["value"] == [expected] and 0 < tier.sum() < 6


def test_bad_input():
    with pytest.raises(InputError, match="one for each of shares"):
        StepBudget(shares=(0.5, 0.5), steps=(3,))
    with pytest.raises(InputError, match="add up to 1"):
        StepBudget(shares=(0.5, 0.6), steps=(3, 4))
