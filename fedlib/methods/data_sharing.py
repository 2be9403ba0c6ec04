"""Globally shared data (Zhao et al. 2018, section 4).

    server:    draws G from its holdout H, uniform over classes, |G| = beta |D|        D: all clients' data
               w_0 <- `warm_up` epochs of SGD on G
    client k:  trains on D_k and a random part G_k of G, |G_k| = alpha |G|

G_k is sent once, in the first round in which client k takes part, and n_k counts it. What is sent may be a copy of
another kind (`copies`), and clients may get unequal parts (`policy`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field, SerializeAsAny
from torch import Tensor

from fedlib import seeds
from fedlib.methods.base import Client, Method, Server, State, zeros
from fedlib.methods.copies import Copy, check_order, made, sources
from fedlib.methods.shared_set import SharedSet, count_download
from fedlib.methods.tiered_sharing import Alike, Policy
from fedlib.spec import InputError


class DataSharing(Method):
    """The server gives the clients images of all classes, to train on beside their own."""

    beta: float = Field(0.05, ge=0, le=1)
    """beta = |G| / |D|. The paper has .025 to .25 of D = 40,000 with H = 10,000; most of the gain comes by .1."""
    alpha: float = Field(1.0, ge=0, le=1)
    """alpha, the part of G that a client receives, at random; in the paper .5 costs less than a point of accuracy."""
    warm_up: int = Field(0, ge=0)
    """Epochs of training on G before round 1: none in the paper's experiment a, to about .60 accuracy in b."""
    policy: SerializeAsAny[Policy] = Alike()
    """Who gets how much: all alike as in the paper, or the one-sided clients more (ByEMD)."""
    copies: tuple[SerializeAsAny[Copy], ...] = ()
    """What is made of the images before they are sent, one after the other; () sends them as they are."""

    def check(self, experiment: Any) -> None:
        if sum(isinstance(method, DataSharing) for method in experiment.methods) > 1:
            raise InputError("two methods that share data (allowed: one DataSharing or AdaptiveSharing)")
        check_order(self.copies)

    def size(self, setting: Any) -> int:
        """|G|, in samples as sent."""
        return int(self.beta * setting.sizes.sum() + 0.5)

    def reserves(self, setting: Any) -> np.ndarray:
        return sources(setting, self.copies, self.size(setting))

    def shared(self, setting: Any) -> SharedSet:
        """G as it is sent."""
        return made(setting, self.copies, self.size(setting))

    def received(self, setting: Any, client: int) -> SharedSet:
        """G_k: what this client gets, in random order."""
        g, share = self.shared(setting), self.alpha * self.policy.shares(setting)[client]
        order = seeds.numpy(setting.experiment.seed, "shared part", 0, client).permutation(len(g.y))
        return g[order[: int(share * len(g.y) + 0.5)]]

    def before(self, server: Server) -> None:
        if server.round == 1 and self.warm_up and self.size(server.setting):
            g = self.shared(server.setting)
            server.w = server.fit(g.x, g.y, self.warm_up, "warm-up")

    def data(
        self, setting: Any, client: int, round: int, x: np.ndarray, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        g = self.received(setting, client)
        return np.concatenate([x, g.x]), np.concatenate([y, g.y])

    def client_state(self, w: Tensor, trained: int) -> State:
        return {"data_sharing.received": zeros(1)}

    def start(self, client: Client) -> None:
        count_download(client, "data_sharing.received", self.received(client.setting, client.index))
