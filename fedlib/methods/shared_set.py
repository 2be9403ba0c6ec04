"""What the server has to share, and the one place where it is drawn.

    G: the first m of one random order of the holdout H in which the classes take turns      (uniform over classes)

So for one seed a smaller G is part of a larger one. :mod:`~fedlib.methods.copies` turns what was drawn into what is
sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedlib import seeds
from fedlib.methods.base import Client
from fedlib.spec import InputError


@dataclass(frozen=True)
class SharedSet:
    """Samples as they are sent."""

    x: np.ndarray
    """uint8 (m, H, W, C)."""
    y: np.ndarray
    """Labels, int64 (m,)."""
    poisoned: np.ndarray
    """Whether an attacker changed the sample, bool (m,): for measures, clients do not see it."""
    bits: int = 8
    """Bits of one pixel value as sent."""

    def __getitem__(self, which: Any) -> SharedSet:
        return SharedSet(self.x[which], self.y[which], self.poisoned[which], self.bits)

    @property
    def sample_bytes(self) -> float:
        """Bytes of one sample as sent: its pixel values, and one byte for its label."""
        return float(np.prod(self.x.shape[1:])) * self.bits / 8 + 1


def draw(setting: Any, size: int) -> np.ndarray:
    """Indices of `size` training images of the holdout; InputError when a class would run out."""
    held = seeds.numpy(setting.experiment.seed, "shared set").permutation(setting.holdout)
    labels, turn = setting.dataset.y_train[held], np.empty(len(held), int)
    for label in range(setting.classes):
        turn[labels == label] = np.arange((labels == label).sum())
    most = int(np.bincount(labels, minlength=setting.classes).min()) * setting.classes
    if size > most:
        raise InputError(
            f"{size} images to draw for sharing, uniform over {setting.classes} classes, from holdout = {len(held)} "
            f"(allowed: at most {most}; take a larger holdout, a smaller beta, or copies that are made of fewer images)"
        )
    return held[np.lexsort((labels, turn))[:size]]


def count_download(client: Client, name: str, g: SharedSet) -> None:
    """Count the bytes of those samples of `g` that the client, by ``state[name]``, has not been sent before."""
    new = max(0, len(g.y) - int(client.state[name]))
    if new:
        client.images_bytes += new * g.sample_bytes
        client.state[name] = torch.tensor(float(len(g.y)))
