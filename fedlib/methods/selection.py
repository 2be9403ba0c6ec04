"""Which clients take part in a round. Without a method it is FedAvg's: m of N uniformly, without replacement.

BySize (Li et al. 2020, FedProx, Algorithm 1 and 2):  S_t: m clients, k with probability p_k = n_k / n;
                                                     w <- (1/m) sum_{k in S_t} w_k
PowerOfChoice (Cho, Wang, Joshi 2020, section 3):     A: d candidates, k with probability p_k, without replacement;
                                                     S_t: the m of A with the largest F_k(w)

Sampling by p_k already favours the large clients, so BySize averages with equal weights: in expectation (with
replacement, exactly) both together are the p_k-weighted average of all clients.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedlib import seeds
from fedlib.methods.base import Client, Method, Server
from fedlib.spec import InputError


def by_size(server: Server, count: int) -> list[int]:
    """`count` clients without replacement, each drawn with probability p_k among those left."""
    rng = seeds.numpy(server.seed, "select by size", server.round)
    return rng.choice(server.clients, count, replace=False, p=server.sizes / server.sizes.sum()).tolist()


class BySize(Method):
    """Clients are chosen with probability in proportion to their samples, and averaged with equal weights."""

    def select(self, server: Server, candidates: list[int]) -> list[int]:
        return by_size(server, len(candidates))

    def finish(self, client: Client) -> None:
        # The loop weights by n_k: sum_k n_k (Delta_k / n_k) / n is m / n times the plain mean.
        client.delta /= client.n
        client.send("m/n", torch.tensor([1 / client.n]))

    def aggregate(self, server: Server, delta: Tensor) -> Tensor:
        return delta / server.received["m/n"]


class PowerOfChoice(Method):
    """Among d candidates, the clients with the largest loss take part.

    Each candidate receives the global weights and reports one number; that is counted.
    """

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
