"""Learning-rate schedules: the local rate of each communication round.

    eta_r = eta f(r),    r = 1, ..., R
    Constant:     f(r) = 1
    Exponential:  f(r) = decay^(r - 1)                             (Zhao et al. 2018)
    Cosine:       f(r) = [1 + cos(pi (r - 1) / R)] / 2             (Loshchilov and Hutter 2017)
    Step:         f(r) = decay^(number of milestones m with r - 1 >= m R)      (Wang et al. 2020)
"""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from fedlib.spec import Spec


class Schedule(Spec):
    """Family of schedules; :meth:`factor` multiplies the experiment's `lr` in round `round` of `rounds` (from 1)."""

    family = {}

    def factor(self, round: int, rounds: int) -> float:
        raise NotImplementedError


class Constant(Schedule):
    """The same rate in every round."""

    def factor(self, round: int, rounds: int) -> float:
        return 1.0


class Exponential(Schedule):
    """Rate times `decay` after every round (Zhao et al. 2018: 0.992 on CIFAR-10, 0.995 on MNIST)."""

    decay: float = Field(0.992, gt=0, le=1)
    """Factor per round; the nearer to 1, the slower. After 100 rounds 0.992 has left 0.45 of the rate."""

    def factor(self, round: int, rounds: int) -> float:
        return self.decay ** (round - 1)


class Cosine(Schedule):
    """Half a cosine from the full rate in round 1 towards zero after the last (Loshchilov & Hutter 2017)."""

    def factor(self, round: int, rounds: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * (round - 1) / rounds))


class Step(Schedule):
    """Rate times `decay` at each milestone, given as fractions of all rounds (Wang et al. 2020: at 50 % and 75 %)."""

    decay: float = Field(0.1, gt=0, le=1)
    """Factor at each milestone; 0.1 is usual."""
    milestones: tuple[Annotated[float, Field(ge=0, lt=1)], ...] = (0.5, 0.75)
    """Fractions of the rounds after which the rate drops, 0 to 1."""

    def factor(self, round: int, rounds: int) -> float:
        return self.decay ** sum(round - 1 >= fraction * rounds - 1e-9 for fraction in self.milestones)
