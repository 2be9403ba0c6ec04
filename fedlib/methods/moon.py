"""MOON, model-contrastive learning (Li, He, Song 2021, Eq. 3 and Algorithm 1).

loss = cross-entropy + mu l_con
l_con = -log  exp(sim(z, z_glob) / tau) / [exp(sim(z, z_glob) / tau) + exp(sim(z, z_prev) / tau)]

sim is the cosine; z, z_glob and z_prev are the representations of an image by the model in training, by the global one
received this round and by this client's own at the end of its last round (the global one when it has none yet; l_con is
then constant). The latter two are in evaluation mode and cost two more forward passes.

The paper takes z after a projection head of two dense layers, which the classifier then sees too: that is a choice of
model. Here z is the representation of whatever model is chosen.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedlib.methods.base import Client, Method, State


class MOON(Method):
    """A contrastive term draws representations to the global model's and away from the client's last ones."""

    mu: float = Field(1.0, ge=0)
    """Weight of the term, mu. Best in the paper: 5 on CIFAR-10, 1 on CIFAR-100 and TinyImageNet; 0 is FedAvg."""
    tau: float = Field(0.5, gt=0)
    """Temperature, tau, 0.5 in the paper. FedDecorr's code of MOON never divides by it, which is tau = 1."""

    def client_state(self, w: Tensor, trained: int) -> State:
        return {"moon_previous": w.clone()}

    def loss(self, client: Client, x: Tensor, y: Tensor, z: Tensor, scores: Tensor) -> Tensor:
        with torch.no_grad():
            z_glob = client.space.at(client.w_start).features(x)
            z_prev = client.space.at(client.state["moon_previous"]).features(x)
        z = z.float()
        similarities = torch.stack([F.cosine_similarity(z, other) for other in (z_glob, z_prev)], dim=1)
        return self.mu * F.cross_entropy(similarities / self.tau, torch.zeros_like(y))

    def finish(self, client: Client) -> None:
        client.state["moon_previous"] = client.w.clone()
