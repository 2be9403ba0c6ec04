"""FedAvgM, momentum on the server, in both forms found in the papers.

undamped (Hsu et al. 2019):             v <- beta v + Delta,               w <- w - v
damped (official code of FedDecorr):    v <- beta v + (1 - beta) Delta,    w <- w - v

Delta is the weighted mean of the updates. The undamped form moves 1/(1 - beta) times as far in a steady direction.
FedDecorr's code also damps BatchNorm's running statistics; here they are averaged, since momentum can make a variance
negative.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from fedlib.methods.base import Method, Server, State, zeros


class FedAvgM(Method):
    """The server's steps have momentum."""

    beta: float = Field(0.9, ge=0, lt=1)
    """Server momentum, beta (rho in FedDecorr's code, which takes 0.9 for CIFAR-10 and 0.5 for CIFAR-100 and
    TinyImageNet). 0 is FedAvg; with 0.9 undamped, lower the local rate."""
    form: Literal["undamped", "damped"] = "undamped"
    """Whether Delta enters v whole (Hsu et al.) or times 1 - beta (FedDecorr's code)."""

    def server_state(self, w: Tensor, trained: int, clients: int) -> State:
        return {"fedavgm_v": zeros(trained)}

    def aggregate(self, server: Server, delta: Tensor) -> Tensor:
        trained = delta[: server.trained]
        gain = 1 - self.beta if self.form == "damped" else 1.0
        v = self.beta * server.state["fedavgm_v"] + gain * trained
        server.state["fedavgm_v"] = v
        trained.copy_(v)
        return delta
