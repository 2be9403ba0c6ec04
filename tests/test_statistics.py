"""Intervals cover the truth as often as they say; fits find what was put in."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedlib.spec import InputError
from fedlib.statistics import (
    BrokenLine,
    Estimate,
    break_point,
    broken_line,
    correlation,
    difference,
    estimate,
    geometric,
    growth,
)


def test_coverage_with_three_seeds():
    rng = np.random.default_rng(0)
    draws = rng.normal(0.7, 0.02, (4000, 3))
    covered = np.mean([e.low <= 0.7 <= e.high for e in map(estimate, draws)])
    assert abs(covered - 0.95) < 3 * np.sqrt(0.95 * 0.05 / 4000)


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=20))
def test_estimate_is_scipys_t_interval(values):
    e = estimate(values)
    assert e.n == len(values) and e.low <= e.mean + 1e-9 and e.mean <= e.high + 1e-9
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95) if np.std(values) > 1e-6 else None
    if expected is not None:
        assert np.allclose([e.low, e.high], [expected.low, expected.high])


def test_one_seed_knows_nothing():
    assert estimate([0.3]).high == np.inf
    with pytest.raises(InputError, match="at least one"):
        estimate([])


def test_geometric_is_the_estimate_of_the_logarithms():
    e = geometric([0.01, 0.1, 1.0])
    assert e.mean == pytest.approx(0.1) and 0 < e.low < e.mean < e.high
    logs = estimate(np.log([0.01, 0.1, 1.0]))
    assert np.log([e.low, e.high]) == pytest.approx([logs.low, logs.high])
    with pytest.raises(InputError, match="above 0"):
        geometric([0.1, 0.0])


def test_correlation_is_the_estimate_of_fishers_z():
    e = correlation([0.3, 0.8, 0.99])
    assert -1 < e.low < e.mean < e.high < 1 and e.n == 3
    z = estimate(np.arctanh([0.3, 0.8, 0.99]))
    assert np.arctanh([e.mean, e.low, e.high]) == pytest.approx([z.mean, z.low, z.high])
    assert correlation([0.5]).low == -1
    for wrong in (1.0, -1.2, np.nan):
        with pytest.raises(InputError, match="between -1 and 1"):
            correlation([0.2, wrong])


def test_difference_is_paired():
    assert difference([0.5, 0.6, 0.7], [0.4, 0.5, 0.6]).low == pytest.approx(0.1)
    assert difference([0.5, 0.6, 0.9], [0.4, 0.4]) == difference([0.5, 0.6], [0.4, 0.4])
    with pytest.raises(InputError, match="at least one"):
        difference([], [1.0])


@pytest.mark.parametrize("low, high, word", [
    (0.1, 0.3, "up"), (-0.3, -0.1, "down"), (-0.1, 0.3, "neither"), (0.0, 0.3, "neither"), (-0.3, 0.0, "neither"),
    (-np.inf, np.inf, "neither"),
])
def test_the_interval_decides_what_is_said(low, high, word):
    assert Estimate((low + high) / 2, low, high, 3).says("up", "down", "neither") == word


LEVELS = np.array([0, 0.36, 0.72, 1.08, 1.44, 1.62, 1.764, 1.8])


@given(st.floats(0.75, 1.6))
def test_break_point_is_found(at):
    line = BrokenLine(0.8, -0.02, -0.7, at)
    assert break_point(LEVELS, line(LEVELS)) == pytest.approx(at, abs=1e-3)
    fitted = broken_line(LEVELS, line(LEVELS))
    assert fitted([0.1, 1.7]) == pytest.approx(line([0.1, 1.7]), abs=1e-3)


def test_break_point_needs_points():
    with pytest.raises(InputError, match="at least 5"):
        break_point([0, 1, 2, 3], [0, 0, 0, 1])


@pytest.mark.parametrize("law, y", [
    ("linear", lambda t: 0.1 + 0.02 * t),
    ("power", lambda t: 0.1 * t**0.4),
    ("exponential", lambda t: 0.1 * np.exp(0.05 * t)),
])
def test_growth_finds_the_law(law, y):
    t = np.arange(1, 31)
    weights = growth(t, y(t) + np.random.default_rng(0).normal(0, 0.002, 30))
    assert max(weights, key=weights.get) == law
    assert sum(weights.values()) == pytest.approx(1)
