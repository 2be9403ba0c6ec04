"""FedProx (Li et al. 2020, Eq. 2 and Algorithm 2).

local objective:  h_k(w; w_t) = F_k(w) + mu/2 ||w - w_t||^2
its gradient:     g + mu (w - w_t)

w_t are the global weights that the client received this round.
"""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from fedlib.methods.base import Client, Method


class FedProx(Method):
    """A proximal term keeps each client near the weights it received."""

    mu: float = Field(0.01, ge=0)
    """Weight of the proximal term, mu. The paper tunes it over 0.001, 0.01, 0.1, 1; larger is steadier and slower, and
    0 is FedAvg."""

    def correct(self, client: Client, g: Tensor) -> None:
        g.add_(client.w[: len(g)] - client.w_start[: len(g)], alpha=self.mu)
