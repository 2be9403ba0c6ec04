"""FedNova (Wang et al. 2020, Algorithm 1 and section 5.1).

client i:  after tau_i steps,  Delta_i = x - y_i = eta sum_k a_i,k g_i(y_k)
           ||a_i||_1 = tau_i                                                        plain SGD
                     = [tau_i - rho (1 - rho^tau_i) / (1 - rho)] / (1 - rho)        momentum rho
                     = [1 - (1 - alpha)^tau_i] / alpha,  alpha = eta mu             FedProx with mu
server:    x <- x - tau_eff sum_i p_i Delta_i / ||a_i||_1
           tau_eff = sum_i p_i ||a_i||_1  or  sum_i p_i tau_i

The three norms are what one recursion gives, which also covers momentum and FedProx together; rho is the experiment's
momentum and mu that of the FedProx beside it. Weight decay is not part of a_i. Running statistics are averaged.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from fedlib.methods.base import Client, Method, Server
from fedlib.methods.fedprox import FedProx
from fedlib.spec import InputError


def norm(steps: int, rho: float = 0.0, alpha: float = 0.0) -> float:
    """||a||_1: how far so many steps of momentum `rho` go when every gradient is 1 and the proximal pull `alpha`."""
    velocity = moved = 0.0
    for _ in range(steps):
        velocity = rho * velocity + 1 - alpha * moved
        moved += velocity
    return moved


class FedNova(Method):
    """Normalised averaging: clients that take more steps no longer count for more."""

    tau_eff: Literal["norms", "steps"] = "norms"
    """Effective steps of a round, tau_eff: the mean of ||a_i||_1 (as in FedDecorr's code; equal clients then move as
    FedAvg does) or of tau_i (the paper's experiments, a smaller step under momentum)."""

    def check(self, experiment: Any) -> None:
        if experiment.optimizer != "sgd":
            raise InputError(f"FedNova knows a_i only of optimizer = 'sgd', given {experiment.optimizer!r}")

    def finish(self, client: Client) -> None:
        experiment = client.setting.experiment
        mu = sum(method.mu for method in experiment.methods if isinstance(method, FedProx))
        a = norm(client.step, experiment.momentum, client.lr * mu)
        client.delta[: client.space.trained] /= a
        effective = a if self.tau_eff == "norms" else client.step
        client.send("fednova_tau", torch.tensor(effective, dtype=torch.float64))

    def aggregate(self, server: Server, delta: Tensor) -> Tensor:
        delta[: server.trained] *= float(server.received["fednova_tau"])
        return delta
