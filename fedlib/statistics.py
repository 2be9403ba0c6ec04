"""Estimates with intervals, and the curve fits that chapters report. The formulas are SciPy's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from fedlib.spec import InputError

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its two-sided 95 % Student t interval."""

    mean: float
    low: float
    high: float
    n: int
    """Number of seeds."""

    def __str__(self) -> str:
        return self.format(".3f")

    def format(self, spec: str) -> str:
        """For example ``0.552 [0.541, 0.563]``."""
        return f"{self.mean:{spec}} [{self.low:{spec}}, {self.high:{spec}}]"

    def says(self, up: str, down: str, neither: str) -> str:
        """The words that the interval allows of a difference: above zero, below it, or not decided."""
        return up if self.low > 0 else down if self.high < 0 else neither


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and t interval (``scipy.stats.t``) of one value per seed; infinite with fewer than two values.

    The t interval assumes that seeds are independent and nearly normal; it is exact for normal ones.
    """
    values = np.asarray(values, float)
    if not len(values):
        raise InputError("an estimate needs at least one value")
    mean = float(values.mean())
    if len(values) == 1:
        return Estimate(mean, -np.inf, np.inf, 1)
    error = stats.sem(values)
    low, high = stats.t.interval(CONFIDENCE, len(values) - 1, mean, error) if error > 0 else (mean, mean)
    return Estimate(mean, float(low), float(high), len(values))


def geometric(values: Sequence[float]) -> Estimate:
    """Geometric mean of one positive value per seed, with the interval of the logarithms: never below zero.

    Of ratios and of quantities that differ by orders of magnitude. Raises :class:`InputError` for a value that is not
    positive.
    """
    values = np.asarray(values, float)
    if not (values > 0).all():
        raise InputError(f"a geometric mean of {values.min():g} (allowed: values above 0)")
    logs = estimate(np.log(values))
    return Estimate(*map(float, np.exp([logs.mean, logs.low, logs.high])), logs.n)


def correlation(values: Sequence[float]) -> Estimate:
    """Mean of one correlation per seed, with the interval of Fisher's z = artanh r (Fisher 1921): never beyond 1.

    Raises :class:`InputError` for a value that is not between -1 and 1, both left out.
    """
    values = np.asarray(values, float)
    if not (np.abs(values) < 1).all():
        raise InputError(f"correlations of {values.tolist()} (allowed: between -1 and 1, both left out)")
    z = estimate(np.arctanh(values))
    return Estimate(*map(float, np.tanh([z.mean, z.low, z.high])), z.n)


def difference(a: Sequence[float], b: Sequence[float]) -> Estimate:
    """Estimate of a - b, paired by seed: both runs share start, partition and batch order where they can.

    Both are values of the seeds 0, 1, ... in this order; where one has more, those without a partner are left out.
    """
    pairs = min(len(a), len(b))
    return estimate(np.subtract(a[:pairs], b[:pairs]))


@dataclass(frozen=True)
class BrokenLine:
    """Continuous, piecewise linear: level + slope x, steeper by `bend` beyond x = `at`."""

    level: float
    slope: float
    bend: float
    at: float

    def __call__(self, x: Sequence[float] | float) -> np.ndarray:
        x = np.asarray(x, float)
        return self.level + self.slope * x + self.bend * np.maximum(0, x - self.at)


def broken_line(x: Sequence[float], y: Sequence[float]) -> BrokenLine:
    """The broken line fitted to (x, y) by least squares; needs five points or more."""
    at = break_point(x, y)
    design, y = _design(np.asarray(x, float), at), np.asarray(y, float)
    return BrokenLine(*map(float, np.linalg.lstsq(design, y, rcond=None)[0]), at)


def _design(x: np.ndarray, at: float) -> np.ndarray:
    return np.stack([np.ones_like(x), x, np.maximum(0, x - at)], 1)


def break_point(x: Sequence[float], y: Sequence[float]) -> float:
    """Where a broken line fitted to (x, y) by least squares bends; needs five points or more.

    For a given bend the fit is linear, so the bend alone is searched, between the second and the last but one point.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    if len(x) < 5:
        raise InputError(f"a break point needs at least 5 points, {len(x)} given")

    def residual(at: float) -> float:
        design = _design(x, at)
        return float(np.sum((y - design @ np.linalg.lstsq(design, y, rcond=None)[0]) ** 2))

    grid = np.sort(x)
    candidates = np.linspace(grid[1], grid[-2], 200)
    start = candidates[np.argmin([residual(at) for at in candidates])]
    step = candidates[1] - candidates[0]
    return float(optimize.minimize_scalar(residual, bounds=(start - step, start + step), method="bounded").x)


GROWTH: dict[str, Callable[..., np.ndarray]] = {
    "linear": lambda t, a, b: a + b * t,
    "power": lambda t, a, b: a * t**b,
    "exponential": lambda t, a, b: a * np.exp(b * t),
}
"""Two-parameter laws of growth over rounds t = 1, 2, ..."""


def growth(t: Sequence[float], y: Sequence[float]) -> dict[str, float]:
    """Akaike weights of each law of :data:`GROWTH`, fitted to (t, y) by least squares: the evidence for it, sum 1.

    Burnham & Anderson 2002, section 2.9, with normal residuals; all laws have two parameters, so that comparing AIC is
    comparing residuals.
    """
    t, y = np.asarray(t, float), np.asarray(y, float)
    starts = {"linear": (y[0], (y[-1] - y[0]) / (t[-1] - t[0])), "power": (y[0], 0.5), "exponential": (y[0], 0.01)}
    aic = {}
    for name, law in GROWTH.items():
        parameters, _ = optimize.curve_fit(law, t, y, starts[name], maxfev=20_000)
        aic[name] = len(t) * np.log(np.mean((y - law(t, *parameters)) ** 2))
    best = min(aic.values())
    weights = {name: np.exp(-(value - best) / 2) for name, value in aic.items()}
    total = sum(weights.values())
    return {name: float(value / total) for name, value in weights.items()}
