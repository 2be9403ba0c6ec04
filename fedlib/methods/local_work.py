"""Clients that do unequal amounts of local work.

LocalEpochs (Wang et al. 2020, FedNova, section 5):  E_k ~ U{low, ..., high}, anew for each client and round
StepBudget:                                         at most tau_j local steps for a client of device tier j

FedAvg averages what comes of it as always; FedNova corrects for it.
"""

from __future__ import annotations

from pydantic import Field, PositiveInt, model_validator

from fedlib import seeds
from fedlib.methods.base import Client, Method
from fedlib.methods.tiers import Shares, one_each, tiers
from fedlib.spec import InputError


class LocalEpochs(Method):
    """The number of local epochs is drawn for each client in each round."""

    low: int = Field(2, ge=1)
    """Fewest epochs. The paper uses U(2, 5)."""
    high: int = Field(5, ge=1)
    """Most epochs."""

    @model_validator(mode="after")
    def _ordered(self) -> LocalEpochs:
        if self.high < self.low:
            raise InputError(f"LocalEpochs.high = {self.high} (allowed: {self.low}, which is low, or more)")
        return self

    def start(self, client: Client) -> None:
        rng = seeds.numpy(client.seed, "local epochs", client.round, client.index)
        client.epochs = int(rng.integers(self.low, self.high, endpoint=True))


class StepBudget(Method):
    """Weak devices stop after fewer local steps."""

    shares: Shares = (0.5, 0.5)
    """Share of the clients in each device tier, strongest first."""
    steps: tuple[PositiveInt, ...] = (1_000_000, 5)
    """Most local steps in each tier, tau_j; the epochs end training earlier if they are fewer."""

    @model_validator(mode="after")
    def _one_each(self) -> StepBudget:
        one_each(self.shares, "steps", self.steps)
        return self

    def start(self, client: Client) -> None:
        tier = tiers(client.seed, client.setting.experiment.clients, self.shares)[client.index]
        client.max_steps = min(self.steps[tier], client.max_steps or self.steps[tier])
