"""Step budgets: a client of device tier j takes at most tau_j local steps.

The same devices are weak in every round, unlike with :class:`~fedlib.methods.local_epochs.LocalEpochs`. FedAvg averages
what comes of it as always; FedNova corrects for it.
"""

from __future__ import annotations

from pydantic import PositiveInt, model_validator

from fedlib.methods.base import Client, Method
from fedlib.methods.tiers import Shares, one_each, tiers


class StepBudget(Method):
    """Weak devices stop after fewer local steps."""

    shares: Shares = (0.5, 0.5)
    """Share of the clients in each device tier, strongest first."""
    steps: tuple[PositiveInt, ...] = (1_000_000, 5)
    """Most local steps in each tier, tau_j; the epochs end training earlier if they are fewer.
    An epoch of n samples is n / B steps."""

    @model_validator(mode="after")
    def _one_each(self) -> StepBudget:
        one_each(self.shares, "steps", self.steps)
        return self

    def start(self, client: Client) -> None:
        tier = tiers(client.seed, client.setting.experiment.clients, self.shares)[client.index]
        client.max_steps = min(self.steps[tier], client.max_steps or self.steps[tier])
