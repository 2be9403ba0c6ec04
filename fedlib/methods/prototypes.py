"""Class feature means in place of shared images (claim W8), with the regulariser of FedProto (Tan et al. 2022, Eq. 7).

    server, each round:  c_j = mean of z(x; w) over the images x of class j in G       (G as in Zhao et al. 2018)
    client's loss:  CE + lam (1/d) ||z - c_y||^2  (mean over the batch)  +  gamma (1/C) sum_j CE(head(c_j), j)

What is shared is features, C x d numbers a round, not images. FedProto averages its clients' own means; here the server
computes them on what it would otherwise share, so that both can be compared at the same G. Its term (lam) pulls a
client's features to the means of its own classes. The second term (gamma) is what shared images do, in feature space:
the head goes on seeing the classes that the client lacks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedlib.methods.base import Client, Method, Server, State, zeros
from fedlib.methods.shared_set import draw


class Prototypes(Method):
    """The server sends the mean representation of each class under the global weights."""

    beta: float = Field(0.05, gt=0, le=1)
    """beta = |G| / |D|, the images that the means are taken over; they never leave the server."""
    lam: float = Field(1.0, ge=0)
    """lambda, FedProto's pull towards the client's own classes' means; paper 1 (its code has .1 for CIFAR-10)."""
    gamma: float = Field(1.0, ge=0)
    """Weight of the head's loss on the means themselves; 0 leaves FedProto's term alone."""

    def reserves(self, setting: Any) -> np.ndarray:
        return draw(setting, max(setting.classes, int(self.beta * setting.sizes.sum() + 0.5)))

    def server_state(self, w: Tensor, trained: int, clients: int) -> State:
        return {"prototypes": zeros(0)}

    def broadcast(self) -> tuple[str, ...]:
        return ("prototypes",)

    def before(self, server: Server) -> None:
        setting = server.setting
        chosen = self.reserves(setting)
        network, images = server.space.at(server.w), torch.from_numpy(setting.dataset.x_train[chosen])
        with torch.inference_mode():
            z = torch.cat([network.features(server.space.images(x)) for x in images.split(500)])
        member = F.one_hot(torch.from_numpy(setting.dataset.y_train[chosen]), setting.classes).float()
        server.state["prototypes"] = (member.T @ z / member.sum(0)[:, None]).clone()

    def loss(self, client: Client, x: Tensor, y: Tensor, z: Tensor, scores: Tensor) -> Tensor | None:
        c = client.server["prototypes"]
        pull = (z.float() - c[y]).square().mean()
        seen = client.space.network.head(c.to(z.dtype)).float()
        return self.lam * pull + self.gamma * F.cross_entropy(seen, torch.arange(len(c)))
