"""Rounds to a target accuracy and the round to stop at, from a record's series.

The unit in which McMahan et al. 2017 and most papers since compare methods: the first communication round after which
the test accuracy reaches a target. A single round's accuracy is noisy under non-IID data, so the mean of the last
`window` evaluations has to reach it. A run that never does is censored at its last round: its true number is larger.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedlib.spec import InputError


class Reached(NamedTuple):
    """When a run reached a target."""

    round: int
    """First round at which it did; the last one measured where `censored`."""
    censored: bool
    """Whether it never did."""


def rounds_to(rounds: ArrayLike, values: ArrayLike, target: float, window: int = 1) -> Reached:
    """First of `rounds` (m,), ascending, at which the mean of the last `window` of `values` (m,) is at least `target`.

    For example ``rounds_to(record.rounds("test_accuracy"), record.values("test_accuracy"), 0.6, window=5)``. No round
    before the `window`-th evaluation counts. Raises :class:`InputError` for lengths that differ, rounds that do not
    ascend, no value, or a window that is not 1 to m.
    """
    rounds, values = np.asarray(rounds), np.asarray(values, float)
    _check(rounds, values)
    if not 1 <= window <= len(values):
        raise InputError(f"window = {window} with {len(values)} values (allowed: 1 to {len(values)})")
    means = np.lib.stride_tricks.sliding_window_view(values, window).mean(1)
    hits = np.flatnonzero(means >= target)
    return Reached(int(rounds[window - 1 + hits[0]]), False) if len(hits) else Reached(int(rounds[-1]), True)


def best_round(rounds: ArrayLike, values: ArrayLike, patience: int | None = None) -> int:
    """The one of `rounds` (m,), ascending, whose value (m,) is the largest; the first where several are.

    With `patience` only the rounds until training is stopped count: until so many evaluations in a row were not better
    than the best before them. Raises :class:`InputError` as :func:`rounds_to` does, and for a patience below 1.
    """
    rounds, values = np.asarray(rounds), np.asarray(values, float)
    _check(rounds, values)
    if patience is not None and patience < 1:
        raise InputError(f"patience = {patience} (allowed: 1 or more, or None)")
    best = 0
    for i in range(len(values)):
        if patience is not None and i - best > patience:
            break
        if values[i] > values[best]:
            best = i
    return int(rounds[best])


def _check(rounds: np.ndarray, values: np.ndarray) -> None:
    if rounds.ndim != 1 or rounds.shape != values.shape or not len(rounds) or (np.diff(rounds) <= 0).any():
        raise InputError(
            f"rounds of shape {rounds.shape} and values of shape {values.shape} "
            "(allowed: two equally long lists of at least one number, rounds ascending)"
        )
