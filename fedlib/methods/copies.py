"""Copies: what is sent in place of the images drawn from the holdout, one made of another.

    drawn images  ->  copies[0]  ->  copies[1]  ->  ...  ->  G as it is sent
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from fedlib.methods.shared_set import SharedSet, draw
from fedlib.spec import Spec


class Copy(Spec):
    """What is sent in place of the images drawn from the holdout."""

    family = {}

    def sources(self, setting: Any, size: int) -> int:
        """Images to draw from the holdout for `size` shared samples."""
        return size

    def make(self, setting: Any, drawn: SharedSet, size: int) -> SharedSet:
        """`size` samples made of those that :meth:`sources` asked for."""
        raise NotImplementedError


def sources(setting: Any, copies: tuple[Copy, ...], size: int) -> np.ndarray:
    """Indices of the holdout's images that `size` shared samples are made of."""
    for copy in reversed(copies) if size else ():
        size = copy.sources(setting, size)
    return draw(setting, size)


def made(setting: Any, copies: tuple[Copy, ...], size: int) -> SharedSet:
    """G: `size` shared samples as they are sent. Made once for a setting."""
    kept = _kept.setdefault(setting, {})
    if (copies, size) not in kept:
        drawn = sources(setting, copies, size)
        images, labels = setting.dataset.x_train[drawn], setting.dataset.y_train[drawn]
        g = SharedSet(images, labels, np.zeros(len(labels), bool))
        for copy in copies if len(labels) else ():
            g = copy.make(setting, g, size)
        kept[copies, size] = g
    return kept[copies, size]


_kept: MutableMapping[Any, dict[tuple[tuple[Copy, ...], int], SharedSet]] = WeakKeyDictionary()
"""The shared sets of the settings in this process."""
