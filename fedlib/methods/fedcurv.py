"""FedCurv (Shoham et al. 2019), elastic weight consolidation (Kirkpatrick et al. 2017) between clients.

local objective:  L_k(w) + lambda sum_{j != k} (w - w_j)^T diag(F_j) (w - w_j)
its gradient:     g + 2 lambda [(A - F_k) w - (b - F_k w_k)],   A = sum_j F_j,   b = sum_j F_j w_j

j runs over the clients of the last round, w_j are their weights at its end. F_j is the diagonal of the empirical Fisher
information there: the mean over client j's samples of the squared gradient of log p(y | x, w_j), in evaluation mode.
Clients send F_j and F_j w_j, the server sends back the sums, and each takes out its own part. In the first round both
sums are 0.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from torch.func import functional_call, grad, vmap

from fedlib.methods.base import Client, Method, Server, State, zeros

CHUNK = 32
"""Samples whose gradients are in memory at a time."""


def fisher(client: Client, w: Tensor) -> Tensor:
    """Diagonal of the empirical Fisher information of weights `w` on the client's samples, (trained,)."""
    layout, network = client.space.layout, client.space.at(w)
    buffers = dict(network.named_buffers())

    def log_likelihood(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        scores = functional_call(network, parameters | buffers, (image[None],))
        return -F.cross_entropy(scores, label[None])

    each_gradient = vmap(grad(log_likelihood), in_dims=(None, 0, 0))
    parameters = {name: tensor.detach() for name, tensor in network.named_parameters()}
    total = torch.zeros_like(w)
    for x, y in zip(client.x.split(CHUNK), client.y.split(CHUNK), strict=True):
        for name, g in each_gradient(parameters, client.space.images(x), y).items():
            layout.view(total, name).add_(g.square().sum(0))
    client.gradients += client.n
    return total[: client.space.trained] / client.n


class FedCurv(Method):
    """Each client spares the weights that matter to the others."""

    lam: float = Field(0.01, ge=0)
    """Weight of the penalty, lambda. Tune it by factors of ten; eta lambda sum_j F_j must stay well below 1. 0 is
    FedAvg."""

    def server_state(self, w: Tensor, trained: int, clients: int) -> State:
        return {"fedcurv_A": zeros(trained), "fedcurv_b": zeros(trained)}

    def broadcast(self) -> tuple[str, ...]:
        return ("fedcurv_A", "fedcurv_b")

    def client_state(self, w: Tensor, trained: int) -> State:
        return {"fedcurv_F": zeros(trained), "fedcurv_Fw": zeros(trained), "fedcurv_round": torch.tensor(0)}

    def correct(self, client: Client, g: Tensor) -> None:
        A, b = client.server["fedcurv_A"], client.server["fedcurv_b"]
        if client.state["fedcurv_round"] == client.round - 1:
            A, b = A - client.state["fedcurv_F"], b - client.state["fedcurv_Fw"]
        g.add_(A * client.w[: len(g)] - b, alpha=2 * self.lam)

    def finish(self, client: Client) -> None:
        F_k = fisher(client, client.w)
        client.state["fedcurv_F"], client.state["fedcurv_Fw"] = F_k, F_k * client.w[: len(F_k)]
        client.state["fedcurv_round"] = torch.tensor(client.round)
        client.send("fedcurv_A", F_k, "sum")
        client.send("fedcurv_b", client.state["fedcurv_Fw"], "sum")

    def after(self, server: Server) -> None:
        for name in self.broadcast():
            server.state[name] = server.received[name]
