"""Ditto: a personal model beside the global one (Li, Hu, Beirami, Smith 2021, Eq. 1 and Algorithm 1).

global model:    w by FedAvg (or whatever other methods make of it)
personal model:  min_v h_k(v; w*) = F_k(v) + lambda/2 ||v - w*||^2
each round:      v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w_t)),   w_t as received, v_k from last time

v_k starts at the first global model, w_0. It never leaves the client: nothing more is sent, each client keeps one more
model, and a round takes twice the gradients.
"""

from __future__ import annotations

from pydantic import Field

from fedlib.methods.base import Client, Method
from fedlib.methods.fedprox import FedProx


class Ditto(Method):
    """Clients are evaluated with a model of their own that is drawn towards the global one."""

    lam: float = Field(1.0, ge=0)
    """Pull towards the global model, lambda: 0 is local training, large is the global model. The official code picks
    from 0.1, 1, 2 on the client's validation samples. The step is stable only for eta lambda < 2."""
    epochs: int | None = Field(None, ge=1)
    """Epochs of the personal model in each round; None: as many as the global model's."""

    def finish(self, client: Client) -> None:
        v = client.state.get("ditto_v", client.setting.w_init)
        client.state["ditto_v"] = client.train_copy(v, (FedProx(mu=self.lam),), "ditto", self.epochs)

    def personal(self, client: Client) -> None:
        client.w.copy_(client.state.get("ditto_v", client.setting.w_init))
