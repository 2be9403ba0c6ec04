"""Power of choice: clients with a large loss take part (Cho, Wang, Joshi 2020, section 3).

A:    d candidates, k with probability p_k = n_k / n, without replacement
S_t:  the m of A with the largest F_k(w)

Each candidate receives the global weights and reports one number; both are counted.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field

from fedlib import seeds
from fedlib.methods.base import Method, Server
from fedlib.methods.by_size import by_size
from fedlib.spec import InputError


class PowerOfChoice(Method):
    """Among d candidates, the clients with the largest loss take part."""

    d: int = Field(ge=1, examples=[5])
    """Candidates, d: from the clients per round m (random selection) to all clients (most biased)."""
    candidates: Literal["size", "uniform"] = "size"
    """Candidates drawn with probability p_k as in the paper, or uniformly; then d = m is exactly FedAvg's choice."""

    def check(self, experiment: Any) -> None:
        if not experiment.cohort <= self.d <= experiment.clients:
            raise InputError(
                f"PowerOfChoice.d = {self.d} (allowed: {experiment.cohort} to {experiment.clients}, "
                f"from the clients per round to all clients)"
            )

    def select(self, server: Server, candidates: list[int]) -> list[int]:
        if self.candidates == "size":
            asked = by_size(server, self.d)
        else:
            others = np.setdiff1d(np.arange(server.clients), candidates)
            rng = seeds.numpy(server.seed, "candidates", server.round)
            asked = candidates + rng.choice(others, self.d - len(candidates), replace=False).tolist()
        losses = server.losses(asked)
        server.bytes_up += 4 * len(asked)
        server.bytes_down += 4 * len(server.w) * (len(asked) - len(candidates))  # the chosen ones keep what they got
        chosen = sorted(asked, key=losses.__getitem__, reverse=True)[: len(candidates)]
        return [k for k in asked if k in chosen]
