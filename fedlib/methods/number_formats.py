"""Devices that hold weights in different number formats: what they receive is rounded on arrival.

    client k starts from Q_k(w), trains in the experiment's precision and sends its weights in float32
    bf16:  Q(w) = w rounded to 8 significant bits
    int8:  Q(w) = s round(w / s),  s = max |w| / 127 for each tensor (symmetric, Jacob et al. 2018)

BatchNorm's running statistics stay float32. A client is evaluated with its rounded weights.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import model_validator
from torch import Tensor

from fedlib.methods.base import Client, Method
from fedlib.methods.tiers import Shares, one_each, tiers
from fedlib.models import Layout

BYTES = {"fp32": 4, "bf16": 2, "int8": 1}


class NumberFormats(Method):
    """Each device tier receives the weights in a number format of its own."""

    shares: Shares = (0.5, 0.5)
    """Share of the clients in each device tier, strongest first."""
    formats: tuple[Literal["fp32", "bf16", "int8"], ...] = ("fp32", "int8")
    """Number format of each tier: bf16 keeps 8 significant bits of a weight, int8 255 levels of a tensor."""

    @model_validator(mode="after")
    def _one_each(self) -> NumberFormats:
        one_each(self.shares, "formats", self.formats)
        return self

    def start(self, client: Client) -> None:
        self.personal(client)
        client.w_start = client.w.clone()  # what the device knows of the global weights
        layout, kind = client.space.layout, self.of(client)
        scales = sum(offset < layout.trained for offset, _ in layout.places.values()) if kind == "int8" else 0
        packed = BYTES[kind] * layout.trained + 4 * (layout.size - layout.trained + scales)
        client.download_bytes *= packed / (4 * layout.size)

    def personal(self, client: Client) -> None:
        rounded(client.w, client.space.layout, self.of(client))

    def of(self, client: Client) -> str:
        """The client's number format."""
        return self.formats[tiers(client.seed, client.setting.experiment.clients, self.shares)[client.index]]


def rounded(w: Tensor, layout: Layout, kind: str) -> None:
    """Round the trained weights in place to what the format can hold."""
    trained = w[: layout.trained]
    if kind == "bf16":
        trained.copy_(trained.to(torch.bfloat16))
    elif kind == "int8":
        for name, (offset, _) in layout.places.items():
            if offset < layout.trained:
                tensor = layout.view(w, name)
                scale = tensor.abs().max().clamp(min=torch.finfo(w.dtype).tiny) / 127
                tensor.copy_((tensor / scale).round() * scale)
