"""Client drift: how far local training moves from the global model, and whether the clients move the same way.

    drift = mean_k ||w_k - w||                            w_k after local training, w the global weights it started from
    cosine = mean_{j < k} <u_j, u_k>,  u_k = Delta_k / ||Delta_k||,  Delta_k the update as sent

The distance is what FedProx's proximal term penalises (Li et al. 2020). Over K clients the mean pairwise cosine is
(||sum_k u_k||^2 - K) / (K (K - 1)), so no update needs to be kept. Both are over trained weights and unweighted.

Cost in a measured round: one vector of the model's size and two passes over each update.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlib.measures.base import Measure, Values
from fedlib.methods.base import Client, Server


def distance(client: Client) -> float:
    """||w_k - w|| over the trained weights, after local training."""
    trained = client.space.trained
    return float((client.w[:trained] - client.w_start[:trained]).norm())


class Drift(Measure):
    """Distance of the clients' models from the global one they started from, and agreement of their updates.

    Series: ``drift``, mean over the round's clients; ``drift_max``, the largest; ``drift_relative``, the mean over the
    norm of the global weights; ``update_cosine``, the mean pairwise cosine of the updates, -1 / (K - 1) to 1, where at
    least two clients sent an update that is not zero.
    """

    def begin(self, run: Any) -> dict[str, Any]:
        trained = run.setting.space.trained
        return {"norm": float(run.w[:trained].norm()), "units": torch.zeros(trained, dtype=torch.float64), "count": 0}

    def client(self, client: Client) -> Values:
        return {"distance": distance(client)}

    def observe(self, scratch: dict[str, Any], index: int, weight: float, delta: Tensor, values: Values) -> None:
        delta = delta[: len(scratch["units"])].double()
        norm = float(delta.norm())
        if norm > 0:
            scratch["units"].add_(delta, alpha=1 / norm)
            scratch["count"] += 1

    def finish(self, scratch: dict[str, Any], run: Any, server: Server, clients: dict[int, Values]) -> Values:
        distances, k = [values["distance"] for values in clients.values()], scratch["count"]
        mean = float(np.mean(distances))
        result = {"drift": mean, "drift_max": max(distances), "drift_relative": mean / scratch["norm"]}
        if k >= 2:
            result["update_cosine"] = (float(scratch["units"] @ scratch["units"]) - k) / (k * (k - 1))
        return result
