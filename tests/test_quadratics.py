"""The calculation is the real loop's, and the rules that deviate do what the docstring says."""

import pytest

from fedlib.methods import SCAFFOLD
from fedlib.quadratics import distances, gain

UNLIKE = dict(h=[1.0, 4.0], a=[1.0, -1.0])


@pytest.mark.parametrize("variant, methods, momentum", [
    ("FedAvg", (), 0.0), ("SCAFFOLD", (SCAFFOLD(),), 0.0), ("FedAvg with momentum", (), 0.9),
])  # fmt: skip
def test_agrees_with_the_real_loop(quadratics, variant, methods, momentum):
    q = quadratics(h=UNLIKE["h"], a=[[x] for x in UNLIKE["a"]], sizes=[10, 10])
    run = q.play(rounds=7, epochs=5, lr=0.03, methods=methods, momentum=momentum)
    found = distances(variant, rounds=7, steps=5, lr=0.03, momentum=0.9, **UNLIKE)
    assert abs(float(run.w[0]) - float(q.optimum[0])) == pytest.approx(found[-1], rel=1e-4)


def test_scaffold_reaches_the_optimum_and_fedavg_does_not():
    fields = dict(rounds=300, steps=10, lr=0.02, **UNLIKE)
    assert distances("SCAFFOLD", **fields)[-1] < 1e-6
    assert distances("FedAvg", **fields)[-1] > 0.01


def test_momentum_beside_the_correction_is_stable_but_ends_elsewhere():
    fields = dict(steps=10, lr=0.01, momentum=0.9, **UNLIKE)
    late, later = (distances("momentum beside", rounds=rounds, **fields)[-1] for rounds in (100, 200))
    assert late == pytest.approx(later, rel=1e-6) and later > 0.01


@pytest.mark.parametrize("variant, steps, momentum, epochs", [
    ("momentum within", 50, 0.9, 1), ("momentum within", 50, 0.3, 1), ("momentum within", 3, 0.5, 1),
    ("K per epoch", 12, 0.0, 4), ("K per epoch", 12, 0.0, 8), ("SCAFFOLD", 12, 0.0, 1),
])  # fmt: skip
def test_a_rule_converges_where_its_gain_is_below_two(variant, steps, momentum, epochs):
    """At a curvature so small that m is what the formula says."""
    found = distances(
        variant, 60, h=[1.0, 2.0], a=[1.0, -1.0], steps=steps, lr=0.001, momentum=momentum, epochs=epochs
    )
    if gain(variant, steps, momentum, epochs) > 2:
        assert found[-1] > 1e6 * found[0]
    else:
        assert found[-1] < found[0]
