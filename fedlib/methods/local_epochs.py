"""Unequal local epochs (Wang et al. 2020, FedNova, section 5).

E_k ~ U{low, ..., high}, anew for each client and round

FedAvg averages what comes of it as always; FedNova corrects for it.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from fedlib import seeds
from fedlib.methods.base import Client, Method
from fedlib.spec import InputError


class LocalEpochs(Method):
    """The number of local epochs is drawn for each client in each round."""

    low: int = Field(2, ge=1)
    """Fewest epochs. The paper uses U(2, 5)."""
    high: int = Field(5, ge=1)
    """Most epochs. The further above `low`, the more FedAvg's objective is biased."""

    @model_validator(mode="after")
    def _ordered(self) -> LocalEpochs:
        if self.high < self.low:
            raise InputError(f"LocalEpochs.high = {self.high} (allowed: {self.low}, which is low, or more)")
        return self

    def start(self, client: Client) -> None:
        rng = seeds.numpy(client.seed, "local epochs", client.round, client.index)
        client.epochs = int(rng.integers(self.low, self.high, endpoint=True))
