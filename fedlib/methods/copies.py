"""Copies: what is sent in place of the images drawn from the holdout, one made of another.

    drawn images  ->  copies[0]  ->  copies[1]  ->  ...  ->  G as it is sent
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from fedlib.methods.shared_set import SharedSet, draw
from fedlib.spec import InputError, Spec


class Copy(Spec):
    """What is sent in place of the images drawn from the holdout."""

    family = {}

    first: ClassVar[bool] = False
    """Whether what it promises holds only of images as they were drawn."""

    def sources(self, setting: Any, size: int) -> int:
        """Images that `size` samples are made of."""
        return size

    def make(self, setting: Any, drawn: SharedSet, size: int) -> SharedSet:
        """`size` samples made of those that :meth:`sources` asked for."""
        raise NotImplementedError


def check_order(copies: tuple[Copy, ...]) -> None:
    """Raise InputError for a chain whose promises do not hold."""
    for i, copy in enumerate(copies):
        if copy.first and i:
            raise InputError(f"copies = {copies}: {type(copy).__name__} has to be made of the images themselves "
                             f"(allowed: as the first)")  # fmt: skip


def sizes(setting: Any, copies: tuple[Copy, ...], size: int) -> list[int]:
    """Images to draw from the holdout, then the samples that each copy makes; the last is `size`."""
    made = [size]
    for copy in reversed(copies):
        made.insert(0, copy.sources(setting, made[0]) if size else 0)
    return made


def sources(setting: Any, copies: tuple[Copy, ...], size: int) -> np.ndarray:
    """Indices of the holdout's images that `size` shared samples are made of."""
    return draw(setting, sizes(setting, copies, size)[0])


def made(setting: Any, copies: tuple[Copy, ...], size: int) -> SharedSet:
    """G: `size` shared samples as they are sent. Made once for a setting."""
    kept = _kept.setdefault(setting, {})
    if (copies, size) not in kept:
        first, *counts = sizes(setting, copies, size)
        drawn = draw(setting, first)
        images, labels = setting.dataset.x_train[drawn], setting.dataset.y_train[drawn]
        g = SharedSet(images, labels, np.zeros(len(labels), bool))
        for copy, count in zip(copies, counts, strict=True) if size else ():
            g = copy.make(setting, g, count)
        kept[copies, size] = g
    return kept[copies, size]


_kept: MutableMapping[Any, dict[tuple[tuple[Copy, ...], int], SharedSet]] = WeakKeyDictionary()
"""The shared sets of the settings in this process."""
