"""Device tiers: which clients are strong devices and which are weak. Shared by the methods that differ by device.

Methods with the same shares in one experiment agree on who belongs to which tier; it does not depend on the data.
"""

from __future__ import annotations

import functools
from collections.abc import Sized
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field

from fedlib import seeds
from fedlib.spec import InputError


def _shares(shares: tuple[float, ...]) -> tuple[float, ...]:
    if min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
        raise InputError(f"shares = {shares} (allowed: positive numbers that add up to 1)")
    return shares


Shares = Annotated[tuple[float, ...], Field(min_length=1), AfterValidator(_shares)]
"""Shares of the clients in each tier, strongest first; they add up to 1."""


def one_each(shares: tuple[float, ...], name: str, given: Sized) -> None:
    """Raise InputError unless there is one of `given` for each tier."""
    if len(given) != len(shares):
        raise InputError(f"{name} = {given} for {len(shares)} tiers (allowed: one for each of shares = {shares})")


@functools.lru_cache(maxsize=16)
def tiers(seed: int, clients: int, shares: tuple[float, ...]) -> np.ndarray:
    """Tier of each client, (clients,), 0 the strongest: sizes as `shares` says within one client, at random."""
    ends = np.rint(np.cumsum(shares) * clients).astype(int)
    tier = np.searchsorted(ends, np.arange(clients), side="right")
    return seeds.numpy(seed, "device tiers").permutation(tier)
