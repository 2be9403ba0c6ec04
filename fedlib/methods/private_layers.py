"""Private and shared layers: each client keeps some layers to itself, the rest is averaged.

    w = (s, p):  client k trains (s, p_k) from the global s and its own p_k of last time;
    the server averages s_k;  p_k stays on the client, which is evaluated with (s, p_k)

p_k starts as the first global model has it; the server's p stays there, so the global model means nothing without a
client's p_k: look at the clients' own accuracies. Bytes up and down are those of s.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator
from torch import Tensor

from fedlib.methods.base import Client, Method
from fedlib.methods.train_only import matching
from fedlib.models import Layout
from fedlib.spec import InputError


class PrivateLayers(Method):
    """Layers named by pattern are private to each client, or all but the named ones."""

    private: tuple[str, ...] | None = Field(None, min_length=1, examples=[("conv*",)])
    """Shell patterns of the private layers' names, for example ("head",); or else give `shared`."""
    shared: tuple[str, ...] | None = Field(None, min_length=1)
    """Shell patterns of the shared layers' names; all others are private."""

    @model_validator(mode="after")
    def _one_of_both(self) -> PrivateLayers:
        if (self.private is None) == (self.shared is None):
            raise InputError(f"private = {self.private}, shared = {self.shared} (allowed: exactly one of the two)")
        return self

    def check(self, experiment: Any) -> None:
        Layout(experiment.outline).select(*(self.private or self.shared))

    def mask(self, client: Client) -> Tensor:
        """Which entries of the weights are private."""
        layout = client.space.layout
        return matching(layout, self.private) if self.private else ~matching(layout, self.shared)

    def start(self, client: Client) -> None:
        self.personal(client)
        client.w_start = client.w.clone()  # so that a proximal term does not pull p_k to the server's
        private = self.mask(client)
        shared = 1 - int(private.sum()) / len(private)
        client.download_bytes *= shared
        client.upload_bytes *= shared

    def finish(self, client: Client) -> None:
        private = self.mask(client)
        client.state["private"] = client.w[private]
        client.delta[private] = 0

    def personal(self, client: Client) -> None:
        if "private" in client.state:
            client.w[self.mask(client)] = client.state["private"]
