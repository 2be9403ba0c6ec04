"""Masks on a round's update (Yan et al. 2026, Eq. 2).

client k, after the round:   Delta_b <- (1/p) m_b Delta_b,   m_b ~ Bernoulli(p) for each block b

The masks are the client's own, or the same for all clients of a round. :mod:`~fedlib.methods.masks` says what a block
is. What is masked is sent as zeros: the bytes stay those of a dense update.
"""

from __future__ import annotations

from fedlib.methods.base import Client, Method
from fedlib.methods.masks import Mask


class UpdateMask(Mask, Method):
    """Masks each client's update before it is sent."""

    def finish(self, client: Client) -> None:
        client.delta[: client.space.trained] *= self.mask(client) / self.p
