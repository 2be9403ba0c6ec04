"""FedAvg (McMahan et al. 2017, Algorithm 1).

client k:  w_k <- w, then E epochs of  w_k <- w_k - eta g
server:    w <- sum_k (n_k / n) w_k
"""

from __future__ import annotations

from fedlib.methods.base import Method


class FedAvg(Method):
    """Federated averaging: the empty method, which every other one departs from."""
