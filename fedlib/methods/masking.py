"""Update masking: SkipUpdate and Magma (Joo et al. 2026), and masks on a round's update (Yan et al. 2026, Eq. 2).

parameters fall into blocks b;  m_b ~ Bernoulli(p), independent over blocks
SkipUpdate, after each step:   w_b <- w_b - (1/p) m_b Delta_b,   Delta_b the optimiser's update
UpdateMask, after the round:   Delta_b <- (1/p) m_b Delta_b,     Delta_b the client's update
Magma, after each step:        w_b <- w_b - s_b m_b Delta_b,     s_b <- 0.9 s_b + 0.1 sigmoid(cos(mu_b, g_b) / tau)

The optimiser's moments see every gradient, also where the update is skipped. With 1/p a masked update has the mean of
the dense one; its expected loss has the penalty (1 - p)/(2p) sum_b Delta_b^T H_bb Delta_b. Magma's s_b is not rescaled.
Running statistics are never masked.
"""

from __future__ import annotations

import functools
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedlib import seeds
from fedlib.methods.base import Client, Method, State
from fedlib.models import Layout
from fedlib.spec import Spec

Unit = Literal["tensor", "row", "column", "element"]


@functools.lru_cache(maxsize=8)
def blocks(layout: Layout, unit: Unit) -> Tensor:
    """The block of each trained weight, int64 (trained,), counted from 0.

    Rows and columns are slices of a tensor along its first and its second dimension, output and input channels; vectors
    have neither and are one block.
    """
    ids, count = torch.zeros(layout.size, dtype=torch.int64), 0
    for name, (offset, shape) in layout.places.items():
        if offset >= layout.trained:
            break
        own = {"row": (0,), "column": (1,)}.get(unit, ()) if len(shape) > 1 else ()
        kept = [size if unit == "element" or i in own else 1 for i, size in enumerate(shape)]
        numbers = torch.arange(torch.Size(kept).numel()).view(kept)
        layout.view(ids, name).copy_(numbers + count)
        count += numbers.numel()
    return ids[: layout.trained]


class Mask(Spec):
    """What is masked, and for whom: the fields that the masking methods share."""

    p: float = Field(0.5, gt=0, le=1)
    """Probability p that a block's update is kept; both papers take 0.5, and 1 masks nothing."""
    unit: Unit = "tensor"
    """What is kept or dropped as one block: a parameter tensor, one of its rows or columns, or a single weight."""
    shared: bool = False
    """The same masks for all clients of a round, instead of independent ones."""

    def mask(self, client: Client, step: int = 0) -> Tensor:
        """1 where the update is kept and 0 elsewhere, (trained,); `step` tells a round's masks apart."""
        ids = blocks(client.space.layout, self.unit)
        who = 0 if self.shared else client.index
        generator = seeds.torch_(client.seed, f"{type(self).__name__} step {step}", client.round, who)
        kept = torch.rand(int(ids[-1]) + 1, generator=generator) < self.p
        return kept[ids].float()


class UpdateMask(Mask, Method):
    """Masks each client's update before it is sent."""

    def finish(self, client: Client) -> None:
        client.delta[: client.space.trained] *= self.mask(client) / self.p


class SkipUpdate(Mask, Method):
    """Masks each local step."""

    redraw: Literal["step", "round"] = "step"
    """Fresh masks for every step, as in the paper, or one for the whole round: its dropped blocks stay as received."""

    def stepped(self, client: Client, before: Tensor) -> None:
        w = client.w[: len(before)]
        mask = self.mask(client, client.step if self.redraw == "step" else 0)
        w.copy_(torch.lerp(before, w, mask / self.p))


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
