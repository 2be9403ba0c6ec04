"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1).

client i:  y <- x;  K times  y <- y - eta_l (g_i(y) - c_i + c)
           option I:   c_i+ = g_i(x), one more pass over the client's samples
           option II:  c_i+ = c_i - c + (x - y) / (K eta_l)
server:    x <- x + eta_g sum_i p_i (y_i - x)
           c <- c + (|S|/N) sum_i p_i (c_i+ - c_i)

K counts the steps of all local epochs. The paper gives every client of the round S the weight p_i = 1/|S|. Here the
objective weighs clients by their samples, so p_i = n_i / n and |S|/N is the round's share of all samples: the paper's
rule where clients are equally large, and in every case c is the n_i-weighted mean of all c_i. Control variates and
eta_g concern the trained weights; running statistics are averaged.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedlib.methods.base import Client, Method, Server, State, zeros
from fedlib.spec import InputError


class SCAFFOLD(Method):
    """Control variates cancel the drift of each client's gradient from everybody's."""

    option: Literal["I", "II"] = "II"
    """How a client renews its control variate: the paper's experiments use II, which costs nothing; I costs a pass over
    the client's samples, is less noisy, and also holds with local momentum."""
    eta_g: float = Field(1.0, gt=0)
    """Server's step size, eta_g; 1 in the paper's experiments."""

    def check(self, experiment: Any) -> None:
        if experiment.optimizer != "sgd":
            raise InputError(f"SCAFFOLD needs optimizer = 'sgd', given {experiment.optimizer!r}")
        if self.option == "II" and experiment.momentum > 0:
            raise InputError(
                f"SCAFFOLD.option = 'II' divides the update by K eta_l, which is wrong with momentum = "
                f"{experiment.momentum:g} (allowed: momentum = 0, or option = 'I')"
            )

    def server_state(self, w: Tensor, trained: int, clients: int) -> State:
        return {"scaffold_c": zeros(trained)}

    def client_state(self, w: Tensor, trained: int) -> State:
        return {"scaffold_c_i": zeros(trained)}

    def broadcast(self) -> tuple[str, ...]:
        return ("scaffold_c",)

    def correct(self, client: Client, g: Tensor) -> None:
        g.sub_(client.state["scaffold_c_i"]).add_(client.server["scaffold_c"])

    def finish(self, client: Client) -> None:
        c, c_i = client.server["scaffold_c"], client.state["scaffold_c_i"]
        if self.option == "I":
            renewed = client.full_gradient(client.w_start)
        else:
            moved = client.w_start[: len(c)] - client.w[: len(c)]
            renewed = c_i - c + moved / (client.step * client.lr)
        client.send("scaffold_dc", renewed - c_i)
        client.state["scaffold_c_i"] = renewed

    def aggregate(self, server: Server, delta: Tensor) -> Tensor:
        delta[: server.trained] *= self.eta_g
        return delta

    def after(self, server: Server) -> None:
        share = float(server.sizes[server.selected].sum() / server.sizes.sum())
        server.state["scaffold_c"] = torch.add(server.state["scaffold_c"], server.received["scaffold_dc"], alpha=share)
