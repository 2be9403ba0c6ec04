"""The bound on weight divergence (Zhao et al. 2018, Prop. 3.1), evaluated beside the divergence that it bounds.

Clients and a centralised twin start from the same weights and follow full gradients, g_i being that of the loss on
class i, so that client k steps along sum_i p_k(i) g_i and the twin along sum_i p(i) g_i. Between two averages

    ||w_k(t+1) - w_c(t+1)|| <= a_k ||w_k(t) - w_c(t)|| + eta EMD_k g_max(w_c(t)),      EMD_k = sum_i |p_k(i) - p(i)|
    a_k = 1 + eta sum_i p_k(i) lambda_i,      g_max = max_i ||g_i||

and the bound on the average model is the mean over the clients. For lambda_i, the Lipschitz constant of g_i, we take
the ratio ||g_i(w_k) - g_i(w_c)|| / ||w_k - w_c|| at the weights that occur: the proof needs no more, and every true
constant is at least as large, so that the bound with true constants lies above ours.

Cost: `steps` (clients + 1) gradients of `images` images of each class, on the server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedlib import partitions
from fedlib.measures.base import Measure, Values
from fedlib.measures.objective import Objective
from fedlib.methods.base import Server
from fedlib.spec import InputError

if TYPE_CHECKING:
    from fedlib.federation import Setting


def follow(
    gradients: Callable[[Tensor], Tensor], start: Tensor, shares: np.ndarray, sizes: np.ndarray, lr: float, steps: int
) -> dict[str, np.ndarray]:
    """Divergence from the twin after each step, (steps,): of the average model, of a client in the mean, and the bound.

    `gradients` gives g_i at weights (d,) as (classes, d); `shares` (clients, classes) are the p_k, rows summing to 1;
    `sizes` (clients,) the n_k. Keys ``average``, ``clients`` and ``bound``; each is at most the next.
    """
    shares, sizes = np.asarray(shares, float), np.asarray(sizes, float)
    if shares.ndim != 2 or shares.min() < 0 or np.abs(shares.sum(1) - 1).max() > 1e-9:
        raise InputError("shares must be (clients, classes) with rows of 0 or more that sum to 1")
    weights = sizes / sizes.sum()
    p = weights @ shares
    emd = np.abs(shares - p).sum(1)
    twin, clients = start.clone(), start.repeat(len(shares), 1)
    mixes = torch.from_numpy(shares).to(start.dtype)
    bounds, found = np.zeros(len(shares)), []
    for _ in range(steps):
        at_twin = gradients(twin)
        for k in range(len(shares)):
            own = gradients(clients[k])
            gap = float((clients[k] - twin).norm())
            lipschitz = ((own - at_twin).norm(dim=1).numpy() / gap) if gap else np.zeros(shares.shape[1])
            a = 1 + lr * shares[k] @ lipschitz
            bounds[k] = a * bounds[k] + lr * emd[k] * float(at_twin.norm(dim=1).max())
            clients[k] -= lr * (mixes[k] @ own)
        twin -= lr * (torch.from_numpy(p).to(start.dtype) @ at_twin)
        gaps = (clients - twin).norm(dim=1).numpy()
        average = torch.from_numpy(weights).to(start.dtype) @ clients
        found.append((float((average - twin).norm()), float(weights @ gaps), float(weights @ bounds)))
    return dict(zip(("average", "clients", "bound"), np.array(found).T, strict=True))


def class_gradients(setting: Setting, w: Tensor, images: int) -> Callable[[Tensor], Tensor]:
    """g_i of a setting's network at trained weights, (classes, trained), over `images` training images of each class.

    What the flat weights `w` have beyond the trained ones, BatchNorm's running statistics, stays as it is there.
    """
    x, y = (a[setting.train] for a in (setting.dataset.x_train, setting.dataset.y_train))
    own = (np.flatnonzero(y == c)[:images] for c in range(setting.classes))
    objectives = [Objective(setting.space, x[rows], y[rows]) for rows in own]
    rest = w[setting.space.trained :].clone()
    return lambda trained: torch.stack([objective.gradient(torch.cat([trained, rest])) for objective in objectives])


class DivergenceBound(Measure):
    """Prop. 3.1 for the steps of one round: from its first weights, at its learning rate.

    Series: ``divergence_bound``, "average", "clients" and "bound" -> a value for each step, as :func:`follow` gives
    them.
    """

    steps: int = Field(5, ge=2, le=100)
    """Local steps between two averages, T."""
    images: int = Field(20, ge=1)
    """Training images of each class for its gradient."""

    def begin(self, run: Any) -> dict[str, Any]:
        e, s = run.experiment, run.setting
        held = partitions.counts(s.dataset.y_train, s.shards, s.classes)
        shares = held / held.sum(1, keepdims=True)
        gradients, start = class_gradients(s, run.w, self.images), run.w[: s.space.trained]
        return follow(gradients, start, shares, s.sizes, e.rate(run.round), self.steps)

    def finish(self, scratch: dict[str, Any], run: Any, server: Server, clients: dict[int, Values]) -> Values:
        return {"divergence_bound": scratch}
