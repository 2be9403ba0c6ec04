"""The check of shared data against poison before use (claim W13); :mod:`~fedlib.methods.label_flips` is an attack.

    client k leaves a sample (x, y) of G_k out of this round when
    max_c log p(c | x; v) - log p(y | x; v) > margin

that is, when the model v finds some other class e^margin times likelier than the label given: the test for label errors
by predicted probabilities (Northcutt et al. 2021, confident learning), with one threshold. v is the global model as
received, or the client's own, trained from it on its own samples only. A model that has learnt nothing flags nothing,
so the check begins to work as training does; from then on each round judges all samples afresh.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedlib.methods.base import Client, Method, overriding
from fedlib.methods.data_sharing import DataSharing
from fedlib.methods.shared_set import SharedSet
from fedlib.spec import InputError


class PoisonCheck(Method):
    """Clients leave out shared samples whose label a model finds unlikely; list it after DataSharing."""

    margin: float = Field(2.0, ge=0)
    """Log-odds, in nats, above which a sample is left out. Small: more poison found, more good samples lost."""
    model: Literal["global", "own"] = "global"
    """Whose judgement. A client of few classes knows no others: its own model then calls most of G wrong."""

    def check(self, experiment: Any) -> None:
        sources = overriding(experiment.methods, "data")
        if not sources or type(sources[-1]) is not DataSharing:
            raise InputError("PoisonCheck needs DataSharing, as the last method that gives clients data")

    def samples(self, client: Client) -> None:
        g = overriding(client.setting.experiment.methods, "data")[-1].received(client.setting, client.index)
        if not len(g.y):
            return
        flagged = self.flagged(client, self.judge(client, client.n - len(g.y)), g)
        keep = torch.cat([torch.ones(client.n - len(g.y), dtype=torch.bool), ~flagged])
        client.x, client.y = client.x[keep], client.y[keep]
        bad = torch.from_numpy(g.poisoned)
        client.state["poison_check"] = torch.stack([flagged & bad, bad, flagged & ~bad, ~bad]).sum(1).float()

    def judge(self, client: Client, own: int) -> Tensor:
        """The weights v; `own` is the number of the client's own samples, which come first."""
        if self.model == "global":
            return client.w_start
        x, y = client.x, client.y
        client.x, client.y = x[:own], y[:own]
        v = client.train_copy(client.w_start, (), "poison check")
        client.x, client.y = x, y
        return v

    def flagged(self, client: Client, v: Tensor, g: SharedSet) -> Tensor:
        """Which samples of `g` are left out, bool (m,)."""
        network, y = client.space.at(v), torch.from_numpy(g.y)
        with torch.inference_mode():
            scores = torch.cat([network(client.space.images(x)) for x in torch.from_numpy(g.x).split(500)])
        return scores.amax(1) - scores.gather(1, y[:, None])[:, 0] > self.margin
