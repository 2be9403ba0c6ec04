"""FedRep: shared representation phi, private head h_k, trained one after the other (Collins et al. 2021, Algorithm 1).

client k:  h_k by `head_epochs` epochs with phi as received,
           then phi_k by the experiment's epochs with h_k fixed
server:    phi <- sum_k p_k phi_k

See :class:`~fedlib.methods.private_layers.PrivateLayers` for what is sent, kept and evaluated.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fedlib.methods.base import Client
from fedlib.methods.private_layers import PrivateLayers
from fedlib.methods.train_only import TrainOnly


class FedRep(PrivateLayers):
    """Private head, shared body; the head is trained first, with the body fixed."""

    private: tuple[str, ...] = Field(("head",), min_length=1)
    """The head's layers."""
    shared: None = None
    """Everything else."""
    head_epochs: int = Field(10, ge=1)
    """Epochs on the head in each round. The official code: 10 with 1 epoch on the body, or 10 with 5."""

    def start(self, client: Client) -> None:
        super().start(client)
        head = self.mask(client)
        trained = client.train_copy(client.w, (TrainOnly(layers=self.private),), "head", self.head_epochs)
        client.w.copy_(torch.where(head, trained, client.w))

    def stepped(self, client: Client, before: Tensor) -> None:
        head = self.mask(client)[: len(before)]
        client.w[: len(before)][head] = before[head]
