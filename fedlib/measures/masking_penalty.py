"""The implicit penalty of masked updates, by Hessian-vector products and by drawing masks (arXiv 2608.23286).

A mask keeps each parameter tensor b of an update with probability p and scales what it keeps by 1 / p (Eq. 2). In
expectation that adds to the loss (Eq. 4, Proposition 1; also Joo et al. 2026, arXiv 2602.15322, Proposition 1)

    R(Delta) = (1 - p) / (2 p) sum_b Delta_b^T H_bb Delta_b        up to O(||Delta||^3)

and in a federation, with p_k = n_k / sum n (the paper has 1 / K),

    one mask a client (Proposition 2):     R_ind = sum_k p_k^2 R(Delta_k)
    one mask for all (Proposition 3):      R_shr = R(sum_k p_k Delta_k)

Here H is the Hessian of the loss on a sample of all clients' training images at the weights w the round starts from;
where it is a multiple of the identity within blocks, R_shr / R_ind is the survival 1 / D_S. The updates are those that
were sent, and the round's own step is not masked: these are the penalties that masks would have had.

Drawn masks give the same to all orders, as E[L(w' + d) - L(w') - g(w')^T d] with w' = w - sum_k p_k Delta_k and d what
a mask changes; g^T d has mean zero and is subtracted because it is most of the variance.

The two need not agree: Proposition 1 takes a smooth loss. With ReLU and max-pooling the loss is smooth in pieces only,
H knows nothing of the kinks between them, and kinks that an update crosses add a term that is of second order too.

Cost in a measured round, B the number of tensors: per client about 2 B gradients of `images` images (on its worker) and
`draws` additions of its update; on the server 2 B gradients, 2 `draws` forward passes, and `draws` vectors of the
model's size in memory, whatever the number of clients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedlib import seeds
from fedlib.measures.base import Measure, Values
from fedlib.measures.objective import Objective, sample
from fedlib.methods.base import Client, Server
from fedlib.models import Layout


def penalty(objective: Objective, w: Tensor, delta: Tensor, p: float) -> float:
    """R(Delta) at weights `w`, in closed form."""
    return (1 - p) / (2 * p) * sum(objective.block_forms(w, delta).values())


def masked(layout: Layout, delta: Tensor, masks: np.ndarray) -> Tensor:
    """`delta` under each mask of (draws, B): its tensors times the mask's entries, (draws, trained)."""
    out = torch.empty(len(masks), layout.trained)
    trained = [(offset, shape.numel()) for offset, shape in layout.places.values() if offset < layout.trained]
    for (offset, size), keep in zip(trained, torch.from_numpy(masks).float().T, strict=True):
        torch.outer(keep, delta[offset : offset + size], out=out[:, offset : offset + size])
    return out


def sampled(objective: Objective, w: Tensor, changes: Tensor) -> tuple[float, float]:
    """Mean and standard error of L(w + d) - L(w) - g(w)^T d over the rows d of `changes` (draws, trained)."""
    trained, at_w, g = changes.shape[1], objective.loss(w), objective.gradient(w).double()
    rises, moved = [], w.clone()
    for d in changes:
        moved[:trained] = w[:trained] + d
        # The change as rounded into the weights, or the linear term would not cancel.
        exact = moved[:trained].double() - w[:trained].double()
        rises.append(objective.loss(moved) - at_w - float(g @ exact))
    return float(np.mean(rises)), float(np.std(rises, ddof=1) / np.sqrt(len(rises)))


class MaskingPenalty(Measure):
    """What masks would add to the loss of this round's average: with one mask a client, and with one for all.

    Series: ``penalty_independent`` and ``penalty_shared`` in closed form; ``penalty_independent_sampled`` and
    ``penalty_shared_sampled`` from drawn masks, each with its standard error (``..._error``). In units of the loss;
    negative where the Hessian is.
    """

    p: float = Field(0.5, gt=0, lt=1)
    """Probability of keeping a tensor."""
    images: int = Field(500, ge=1)
    """Training images that the loss is taken on, drawn once per run."""
    draws: int = Field(32, ge=2)
    """Masks drawn for each of the two kinds."""
    every: int = Field(10, ge=1)
    """Measure in rounds 1, 1 + every, ... and in the last: this is a costly measure."""

    def _masks(self, seed: int, kind: str, round: int, client: int, blocks: int) -> np.ndarray:
        """Masks (draws, B) with entries 0 and 1 / p."""
        rng = seeds.numpy(seed, f"penalty, {kind} mask", round, client)
        return (rng.random((self.draws, blocks)) < self.p) / self.p

    def begin(self, run: Any) -> dict[str, Any]:
        layout = run.setting.space.layout
        blocks = sum(offset < layout.trained for offset, _ in layout.places.values())
        return {
            "w": run.w, "layout": layout, "key": (run.experiment.seed, run.round), "blocks": blocks, "weights": 0.0,
            "mean": torch.zeros(layout.size), "masked": torch.zeros(self.draws, layout.trained),
        }  # fmt: skip

    def client(self, client: Client) -> Values:
        objective = Objective(client.space, *sample(client.setting, "train", self.images))
        return {"penalty": penalty(objective, client.w_start, client.delta, self.p), "weight": client.weight}

    def observe(self, scratch: dict[str, Any], index: int, weight: float, delta: Tensor, values: Values) -> None:
        seed, round = scratch["key"]
        masks = self._masks(seed, "independent", round, index, scratch["blocks"])
        scratch["weights"] += weight
        scratch["mean"].add_(delta, alpha=weight)
        scratch["masked"].add_(masked(scratch["layout"], delta, masks), alpha=weight)

    def finish(self, scratch: dict[str, Any], run: Any, server: Server, clients: dict[int, Values]) -> Values:
        layout, weights = scratch["layout"], scratch["weights"]
        mean = scratch["mean"] / weights
        objective = Objective(server.space, *sample(server.setting, "train", self.images))
        result = {
            "penalty_independent": sum(v["weight"] ** 2 * v["penalty"] for v in clients.values()) / weights**2,
            "penalty_shared": penalty(objective, scratch["w"], mean, self.p),
        }
        masks = self._masks(*scratch["key"][:1], "shared", scratch["key"][1], 0, scratch["blocks"])
        after, trained = scratch["w"] - mean, mean[: layout.trained]
        for kind, steps in (("independent", scratch["masked"].div_(weights)), ("shared", masked(layout, mean, masks))):
            value, error = sampled(objective, after, trained - steps)
            result |= {f"penalty_{kind}_sampled": value, f"penalty_{kind}_sampled_error": error}
        return result
