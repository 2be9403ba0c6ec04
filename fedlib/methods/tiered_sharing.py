"""Who gets how much of the shared data: all alike, by need (S4's tiers), or all alike at an equal budget.

    Alike:        share_k = 1
    ByEMD:        share_k = parts[i]    for thresholds[i - 1] <= EMD_k < thresholds[i],    EMD_k = sum_c |p_k(c) - p(c)|
    EqualBudget:  share_k = mean of another policy's shares: as many images are sent in all
"""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field, SerializeAsAny, model_validator

from fedlib.partitions import counts
from fedlib.spec import InputError, Spec


class Policy(Spec):
    """Who gets how much of G."""

    family = {}

    def shares(self, setting: Any) -> np.ndarray:
        """Part of G for each client, (clients,), each 0 to 1; the paper's alpha multiplies it."""
        raise NotImplementedError


class Alike(Policy):
    """The same for every client."""

    def shares(self, setting: Any) -> np.ndarray:
        return np.ones(len(setting.shards))


class ByEMD(Policy):
    """A client's part of G follows its EMD to the population (Zhao et al. 2018, Proposition 3.1), in tiers."""

    thresholds: tuple[float, ...] = Field((0.5, 1.2), min_length=1)
    """EMD at which the next tier begins, ascending, in (0, 2): S4's. One class of ten equal ones is at 1.8."""
    parts: tuple[float, ...] = (0.0, 0.3, 0.7)
    """Part of G in each tier, S4's, one more than the thresholds; the last is for the most one-sided clients."""

    @model_validator(mode="after")
    def _tiers(self) -> ByEMD:
        t = self.thresholds
        if list(t) != sorted(set(t)) or not 0 < t[0] <= t[-1] < 2:
            raise InputError(f"ByEMD.thresholds = {t} (allowed: ascending, each above 0 and below 2)")
        if len(self.parts) != len(t) + 1 or not all(0 <= part <= 1 for part in self.parts):
            raise InputError(f"ByEMD.parts = {self.parts} (allowed: {len(t) + 1} numbers of 0 to 1)")
        return self

    def shares(self, setting: Any) -> np.ndarray:
        from fedlib.measures.emd import emd  # the measures are built on the methods' package

        distances = emd(counts(setting.dataset.y_train, setting.shards, setting.classes))
        return np.array(self.parts)[np.searchsorted(self.thresholds, distances, side="right")]


class EqualBudget(Policy):
    """Every client gets the same part, so large that as many images are sent in all as by another policy."""

    of: SerializeAsAny[Policy] = ByEMD()
    """The policy to compare with."""

    def shares(self, setting: Any) -> np.ndarray:
        shares = self.of.shares(setting)
        return np.full(len(shares), shares.mean())
