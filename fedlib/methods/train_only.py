"""Training of some layers only; the others stay as they were received.

    w_k[i] <- w[i]   after every step, for each entry i of a layer that matches none of the patterns

What gradient, momentum and weight decay did to those entries is undone, and they are not sent.
"""

from __future__ import annotations

import functools
from typing import Any

from pydantic import Field
from torch import Tensor

from fedlib.methods.base import Client, Method
from fedlib.models import Layout


class TrainOnly(Method):
    """Clients train only the layers that match; the rest of the network is frozen."""

    layers: tuple[str, ...] = Field(("head",), min_length=1)
    """Shell patterns of layer names, for example ("head",) or ("fc*", "head"); ("*",) is everything."""

    def check(self, experiment: Any) -> None:
        Layout(experiment.outline).select(*self.layers)

    def stepped(self, client: Client, before: Tensor) -> None:
        frozen = ~matching(client.space.layout, self.layers)[: len(before)]
        client.w[: len(before)][frozen] = before[frozen]

    def finish(self, client: Client) -> None:
        trained = matching(client.space.layout, self.layers)
        client.delta[~trained] = 0
        client.upload_bytes *= int(trained.sum()) / len(trained)


@functools.lru_cache(maxsize=16)
def matching(layout: Layout, patterns: tuple[str, ...]) -> Tensor:
    """:meth:`Layout.select`, kept: it is asked for at every step."""
    return layout.select(*patterns)
