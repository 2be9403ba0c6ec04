"""Shared data that follows the shift (claim W14: beta adapted over time).

    shift_k = |A(w; D_k now) - A(w; G)|                      A: accuracy of the received global weights w
    beta_k = beta min(1, floor + gain shift_k)               the part of its G_k that client k trains on in this round

A model that suits the shared set as it suits the client's present data (shift 0) says that the client sees what
everybody sees. It does better on the client's data than on G when it forgets what the client does not see now
(:class:`~fedlib.partitions.TemporalOrder`), worse when labels have changed their meaning
(:class:`~fedlib.partitions.ConceptDrift`); both call for more of G. S4 names no measure; this one is ours. Cost: one
forward pass over D_k and one over G, 4 bytes for A(w; G); an image is sent when it is first used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedlib.methods.base import Client, Server, State, zeros
from fedlib.methods.data_sharing import DataSharing
from fedlib.methods.shared_set import count_download


class AdaptiveSharing(DataSharing):
    """Data sharing with as much of G in each round as the measured shift asks for; `beta` is the most."""

    floor: float = Field(0.2, ge=0, le=1)
    """Part of G_k used when no shift is measured; 0 shares nothing in calm rounds."""
    gain: float = Field(2.0, ge=0)
    """Further part per unit of shift (a difference of accuracies, 0 to 1); 0 is fixed sharing of floor x beta."""

    def server_state(self, w: Tensor, trained: int, clients: int) -> State:
        return {"adaptive_sharing.accuracy": zeros(1)}

    def broadcast(self) -> tuple[str, ...]:
        return ("adaptive_sharing.accuracy",)

    def before(self, server: Server) -> None:
        super().before(server)
        g = self.shared(server.setting)
        server.state["adaptive_sharing.accuracy"] = torch.tensor([accuracy(server.setting, server.w, g.x, g.y)])

    def data(
        self, setting: Any, client: int, round: int, x: np.ndarray, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        return x, y  # how much of G is known once the weights are: see samples

    def samples(self, client: Client) -> None:
        own = accuracy(client.setting, client.w_start, client.x.numpy(), client.y.numpy())
        shift = abs(own - float(client.server["adaptive_sharing.accuracy"]))
        g = self.received(client.setting, client.index)
        g = g[: int(min(1, self.floor + self.gain * shift) * len(g.y) + 0.5)]
        client.x = torch.cat([client.x, torch.from_numpy(g.x)])
        client.y = torch.cat([client.y, torch.from_numpy(g.y)])
        if client.setting.experiment.batch_size is None:
            client.batch_size = client.n
        count_download(client, "data_sharing.received", g)

    def start(self, client: Client) -> None:
        pass  # what is used has been counted


def accuracy(setting: Any, w: Tensor, x: np.ndarray, y: np.ndarray) -> float:
    """Accuracy of weights `w` on some images; 0 without images."""
    return float(setting.scores(w, x, y)[1].sum() / len(y)) if len(y) else 0.0
