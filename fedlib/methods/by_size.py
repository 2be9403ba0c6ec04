"""Sampling of clients by their size (Li et al. 2020, FedProx, Algorithms 1 and 2).

S_t:     m clients, k with probability p_k = n_k / n, without replacement
server:  w <- (1/m) sum_{k in S_t} w_k

Sampling by p_k already favours the large clients, so the average has equal weights: in expectation (with replacement,
exactly) both together are the p_k-weighted average of all clients.
"""

from __future__ import annotations

from fedlib import seeds
from fedlib.methods.base import Client, Method, Server


def by_size(server: Server, count: int) -> list[int]:
    """`count` clients without replacement, each drawn with probability p_k among those left."""
    rng = seeds.numpy(server.seed, "select by size", server.round)
    return rng.choice(server.clients, count, replace=False, p=server.sizes / server.sizes.sum()).tolist()


class BySize(Method):
    """Clients are chosen with probability in proportion to their samples, and averaged with equal weights."""

    def select(self, server: Server, candidates: list[int]) -> list[int]:
        return by_size(server, len(candidates))

    def finish(self, client: Client) -> None:
        client.weight = 1.0
