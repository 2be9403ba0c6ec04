"""Per-FedAvg: a global model that is good after a step of adaptation (Fallah, Mokhtari, Ozdaglar 2020, Algorithm 1).

objective:        F_k(w) = f_k(w - alpha grad f_k(w))
each local step:  w~ = w - alpha grad f_k(w; D)
                  w <- w - beta (I - alpha hess f_k(w; D'')) v,   v = grad f_k(w~; D')
FO:               the Hessian is left out, w <- w - beta v
HF:               hess f_k(w; D'') v = [grad f_k(w + delta v; D'') - grad f_k(w - delta v; D'')] / (2 delta)
a client's model: w - alpha grad f_k(w)

beta is the experiment's learning rate. D' is the loop's batch, D and D'' are drawn afresh, of the same size and without
augmentation. A step costs the gradients of 2 (FO) or 4 (HF) batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedlib import seeds
from fedlib.methods.base import Client, Method
from fedlib.spec import InputError


class PerFedAvg(Method):
    """Meta-learning: clients are evaluated after `steps` gradient steps on their own samples."""

    alpha: float = Field(0.01, ge=0)
    """Rate of the inner step, alpha. The paper uses 0.001 to 0.01; 0 is FedAvg."""
    variant: Literal["FO", "HF"] = "HF"
    """FO leaves the Hessian out and is cheaper; HF keeps it by a difference of gradients."""
    delta: float = Field(0.001, gt=0)
    """Half width of the difference, delta. At ReLU's kinks the difference of a few samples' gradients jumps by
    1 / delta, so 0.01 can be steadier; far larger, it is no Hessian any more and training may diverge."""
    steps: int = Field(1, ge=1)
    """Gradient steps of rate alpha with which a client adapts the global model before it uses it; the objective is
    made for one."""

    def check(self, experiment: Any) -> None:
        if experiment.precision != "fp32":
            raise InputError("PerFedAvg with precision = 'bf16': rounding swallows its inner step (allowed: 'fp32')")

    def gradient(self, client: Client, compute: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
        w, g = client.w[: client.space.trained], client.space.g
        before, statistics = w.clone(), client.w[client.space.trained :]
        kept = statistics.clone()
        compute(*draw(client, "D"))
        statistics.copy_(kept)  # only the loop's batch counts in BatchNorm's running statistics
        w.sub_(g, alpha=self.alpha)
        loss = compute(x, y)
        if self.variant == "HF":
            v, kept, other = g.clone(), statistics.clone(), draw(client, "D''")
            torch.add(before, v, alpha=self.delta, out=w)
            compute(*other)
            plus = g.clone()
            torch.sub(before, v, alpha=self.delta, out=w)
            compute(*other)
            statistics.copy_(kept)
            hessian_v = (plus - g) / (2 * self.delta)
            torch.sub(v, hessian_v, alpha=self.alpha, out=g)
        w.copy_(before)
        return loss

    def personal(self, client: Client) -> None:
        client.space.network.train()
        for client.step in range(self.steps):  # the step keys the draw
            client.space.gradient(client, *draw(client, "adapt"), [])
            client.w[: client.space.trained].sub_(client.space.g, alpha=self.alpha)


def draw(client: Client, name: str) -> tuple[Tensor, Tensor]:
    """A batch of the client's samples, drawn without replacement, one of each name at each step."""
    rng = seeds.numpy(client.seed, f"Per-FedAvg {name} {client.step}", client.round, client.index)
    batch = torch.from_numpy(rng.choice(client.n, min(client.batch_size, client.n), replace=False))
    return client.space.images(client.x[batch]), client.y[batch]
