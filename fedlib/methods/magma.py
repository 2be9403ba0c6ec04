"""Magma: masked steps, damped where gradient and momentum disagree (Joo et al. 2026).

after each step:   w_b <- w_b - s_b m_b Delta_b,     m_b ~ Bernoulli(p) for each block b
                   s_b <- 0.9 s_b + 0.1 sigmoid(cos(mu_b, g_b) / tau),   mu the running mean of the gradients g

Delta_b is the optimiser's update, and its moments see every gradient. s_b is not rescaled by 1/p. The paper does so in
attention and dense layers only; here it is done to every block of the network.
:mod:`~fedlib.methods.masks` says what a block is.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fedlib.methods.base import Client, Method, State
from fedlib.methods.masks import Mask, blocks


class Magma(Mask, Method):
    """Masks each local step and damps it where gradient and momentum disagree: the centralised reference.

    mu_b and s_b belong to the client and go on from round to round, so that one client is centralised training.
    """

    tau: float = Field(2.0, gt=0)
    """Temperature, tau; the paper found 0.5 to 4 alike."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Decay of mu, the running mean of the gradients that the present one is compared with."""

    def client_state(self, w: Tensor, trained: int) -> State:
        return {"magma_mu": torch.zeros(trained), "magma_s": torch.tensor(0.5)}  # sigmoid(0): nothing known yet

    def correct(self, client: Client, g: Tensor) -> None:
        ids = blocks(client.space.layout, self.unit)

        def per_block(values: Tensor) -> Tensor:
            return torch.zeros(int(ids[-1]) + 1).index_add_(0, ids, values)

        mu = torch.lerp(g, client.state["magma_mu"], self.momentum)
        norms = (per_block(mu.square()) * per_block(g.square())).sqrt()
        cosine = per_block(mu * g) / norms.clamp_min(1e-12)
        client.state["magma_mu"] = mu
        client.state["magma_s"] = 0.9 * client.state["magma_s"] + 0.1 * torch.sigmoid(cosine / self.tau)

    def stepped(self, client: Client, before: Tensor) -> None:
        w = client.w[: len(before)]
        damping = client.state["magma_s"][blocks(client.space.layout, self.unit)]
        w.copy_(torch.lerp(before, w, damping * self.mask(client, client.step)))
