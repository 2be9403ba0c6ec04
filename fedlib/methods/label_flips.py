"""Poisoned shared data: in a part of G each label becomes another one, at random (claim W13).

    y <- (y + u) mod C    for round(fraction |G|) samples,    u ~ U{1, ..., C - 1}

:mod:`~fedlib.methods.poison_check` is the defence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pydantic import Field

from fedlib import seeds
from fedlib.methods.copies import Copy
from fedlib.methods.shared_set import SharedSet


class LabelFlips(Copy):
    """The attack: wrong labels on part of the shared samples."""

    fraction: float = Field(0.2, ge=0, le=1)
    """Part of G with wrong labels; at 1 - 1 / C the labels say nothing any more."""

    def make(self, setting: Any, drawn: SharedSet, size: int) -> SharedSet:
        rng, y, poisoned = seeds.numpy(setting.experiment.seed, "label flips"), drawn.y.copy(), drawn.poisoned.copy()
        flipped = rng.permutation(len(y))[: int(self.fraction * len(y) + 0.5)]
        y[flipped] = (y[flipped] + rng.integers(1, setting.classes, len(flipped))) % setting.classes
        poisoned[flipped] = True
        return replace(drawn, y=y, poisoned=poisoned)
