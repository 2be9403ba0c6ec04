"""EMD: by hand, against Monte Carlo, and against a transport solver."""

import numpy as np
import pytest

from fedlib.measures.emd import emd, expected_emd, mean_emd
from fedlib.spec import InputError


def test_by_hand():
    assert emd(np.eye(10) * 400) == pytest.approx(np.full(10, 1.8))  # Zhao et al.: one class of ten
    assert emd(np.full((3, 4), 5)) == pytest.approx(np.zeros(3))
    unequal = np.array([[30, 0], [5, 5]])  # population 35/40, 5/40
    assert emd(unequal) == pytest.approx([0.25, 0.75])
    assert mean_emd(unequal) == pytest.approx((30 * 0.25 + 10 * 0.75) / 40)
    uniform = np.array([0.5, 0.5])
    assert emd(unequal, uniform) == pytest.approx([1, 0])
    assert mean_emd(unequal, uniform) == pytest.approx(30 / 40)


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5, 1.0, 10.0])
@pytest.mark.parametrize("classes", [2, 10, 100])
def test_expected_under_dirichlet_is_the_monte_carlo_mean(alpha, classes):
    draws = np.random.default_rng(0).dirichlet(np.full(classes, alpha), 20_000)
    values = np.abs(draws - 1 / classes).sum(1)
    assert abs(expected_emd(alpha, classes) - values.mean()) < 4 * values.std() / np.sqrt(len(values))


def test_expected_limits():
    assert expected_emd(1e-6, 10) == pytest.approx(1.8, abs=1e-4)
    assert expected_emd(1e6, 10) == pytest.approx(0, abs=1e-2)


def test_half_of_it_is_the_transport_distance_with_0_1_cost():
    import ot

    rng = np.random.default_rng(0)
    for classes in (2, 5, 10):
        counts = rng.multinomial(50, rng.dirichlet(np.full(classes, 0.3)), size=6)
        population = counts.sum(0) / counts.sum()
        cost = 1.0 - np.eye(classes)
        transported = [ot.emd2(row / row.sum(), population, cost) for row in counts]
        assert emd(counts) == pytest.approx(2 * np.array(transported), abs=1e-9)


def test_bad_input():
    for counts in (np.zeros(3), np.array([[1, 2], [0, 0]]), np.array([[1, -1], [1, 1]])):
        with pytest.raises(InputError, match="counts"):
            emd(counts)
    for alpha in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="alpha"):
            expected_emd(alpha, 10)
    with pytest.raises(InputError, match="classes"):
        expected_emd(1.0, 1)
