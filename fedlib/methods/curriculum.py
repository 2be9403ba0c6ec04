"""Curriculum over device tiers: the strong devices train first, the weaker ones join later.

    round t:  m clients are drawn from those whose tier j has joined,  join_j <= t

Until all have joined there may be fewer than m, then all of them take part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import PositiveInt, model_validator

from fedlib import seeds
from fedlib.methods.base import Method, Server
from fedlib.methods.tiers import Shares, one_each, tiers
from fedlib.spec import InputError


class Curriculum(Method):
    """Weak devices take part only after some rounds of the strong ones."""

    shares: Shares = (0.5, 0.5)
    """Share of the clients in each device tier, strongest first."""
    join: tuple[PositiveInt, ...] = (1, 11)
    """First round of each tier; the earliest is 1. What a tier alone holds is not learnt before it joins."""

    @model_validator(mode="after")
    def _somebody_starts(self) -> Curriculum:
        one_each(self.shares, "join", self.join)
        if min(self.join) != 1:
            raise InputError(f"Curriculum.join = {self.join} (allowed: the earliest is 1, somebody must start)")
        return self

    def check(self, experiment: Any) -> None:
        if not (np.array(self.join)[tiers(experiment.seed, experiment.clients, self.shares)] == 1).any():
            raise InputError(
                f"Curriculum.shares = {self.shares} of clients = {experiment.clients}: no client is in a tier that "
                f"joins in round 1 (allowed: shares that give it one)"
            )

    def select(self, server: Server, candidates: list[int]) -> list[int]:
        joined = np.array(self.join)[tiers(server.seed, server.clients, self.shares)] <= server.round
        chosen = [k for k in candidates if joined[k]]
        others = np.setdiff1d(np.flatnonzero(joined), chosen)
        missing = min(len(candidates) - len(chosen), len(others))
        return chosen + seeds.numpy(server.seed, "curriculum", server.round).choice(others, missing, False).tolist()
