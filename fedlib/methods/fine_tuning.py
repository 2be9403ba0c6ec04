"""Local fine-tuning: each client adapts the global model to itself before it uses it (Yu, Bagdasaryan, Shmatikov 2020).

    v_k <- w,  then some epochs of  v_k <- v_k - eta g   on the client's own samples, in the chosen layers

The federation learns as without it; nothing is sent and nothing is kept. With early stop a part of the client's own
training samples is set aside, and v_k is what had the least loss on them, w itself included.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from fedlib import seeds
from fedlib.methods.base import Client, Method
from fedlib.methods.train_only import TrainOnly, matching
from fedlib.spec import InputError


class FineTuning(Method):
    """Clients are evaluated with the global model after some local training of it."""

    layers: tuple[str, ...] = Field(("head",), min_length=1)
    """Layers to adapt, as shell patterns: ("head",) is safe for small clients, ("*",) is the whole network."""
    epochs: int = Field(5, ge=1)
    """Local epochs; with early stop the most that are tried."""
    steps: int | None = Field(None, ge=1)
    """So many steps instead, over as many epochs as they take, for comparison with Per-FedAvg; not with early stop."""
    lr: float | None = Field(None, gt=0)
    """Learning rate; None: the round's."""
    held_back: float = Field(0.0, ge=0, lt=1)
    """Share of the client's own training samples set aside for early stop (at least one); 0: no early stop."""
    patience: int = Field(1, ge=1)
    """Epochs without a smaller loss on the samples set aside before it stops."""

    @model_validator(mode="after")
    def _one_way_to_stop(self) -> FineTuning:
        if self.steps is not None and self.held_back:
            raise InputError(f"steps = {self.steps} with held_back = {self.held_back:g} (allowed: one of the two)")
        return self

    def check(self, experiment: Any) -> None:
        TrainOnly(layers=self.layers).check(experiment)

    def personal(self, client: Client) -> None:
        w = client.w.clone()
        rng = seeds.numpy(client.seed, "held back", client.round, client.index)
        aside = max(1, round(self.held_back * client.n)) if self.held_back else 0
        watched, own = torch.from_numpy(rng.permutation(client.n)).tensor_split([aside])
        if not len(own):
            return
        learner = replace(client, x=client.x[own], y=client.y[own], lr=self.lr or client.lr, max_steps=self.steps)
        if self.held_back:
            v, best, least, waited = w, w, loss(client, w, watched), 0
            for epoch in range(self.epochs):
                v = tune(learner, v, self.layers, 1, f"fine-tuning {epoch}")
                new = loss(client, v, watched)
                best, least, waited = (v, new, 0) if new < least else (best, least, waited + 1)
                if waited == self.patience:
                    break
        else:
            # An epoch has a step at least, and none is taken beyond the last.
            best = tune(learner, w, self.layers, self.steps or self.epochs, "fine-tuning")
        client.gradients = learner.gradients
        client.w.copy_(best)


def tune(client: Client, w: Tensor, layers: tuple[str, ...], epochs: int, purpose: str) -> Tensor:
    """Weights after some local epochs from `w` in which only these layers change; `purpose` keys the batches."""
    trained = client.train_copy(w, (TrainOnly(layers=layers),), purpose, epochs)
    return torch.where(matching(client.space.layout, layers), trained, w)  # the others' running statistics too


@torch.no_grad()
def loss(client: Client, w: Tensor, which: Tensor) -> float:
    """Mean cross-entropy of weights `w` on some of the client's samples."""
    return float(F.cross_entropy(client.space.at(w)(client.space.images(client.x[which])), client.y[which]))
