"""What every contender trains: FedAvg over 100 clients with 500 images each, of CIFAR-10's shape.

The images are random, since no contender's speed depends on what they show. This module and the contenders of other
frameworks import neither fedlib nor anything else that is not in the peers' environment.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

CLIENTS, OWN, PER_ROUND, BATCH, LR, CLASSES = 100, 500, 10, 32, 0.05, 10
"""Clients, images of each, clients per round (one epoch each), batch size, learning rate, classes."""

SHAPE = (32, 32, 3)

now = time.perf_counter
"""One clock for all processes of a machine."""


def write(folder: Path, count: int = CLIENTS * OWN, shape: tuple[int, int, int] = SHAPE) -> None:
    """Write random images, uint8 (count, *shape), and labels, int64 (count,); client k has rows 500k to 500k + 499."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "x.npy", rng.integers(0, 256, (count, *shape), np.uint8))
    np.save(folder / "y.npy", rng.integers(0, CLASSES, count))


def read(folder: Path, mode: str = "r") -> tuple[np.ndarray, np.ndarray]:
    """Images and labels, mapped into memory, so that the processes of a contender share them.

    `mode` "c" (copy on write) is for those who make torch tensors of them, which have no read-only kind.
    """
    return np.load(folder / "x.npy", mmap_mode=mode), np.load(folder / "y.npy", mmap_mode=mode)


def cohorts(rounds: int) -> Iterator[list[int]]:
    """The clients of each round, drawn uniformly without replacement."""
    rng = np.random.default_rng(1)
    for _ in range(rounds):
        yield rng.choice(CLIENTS, PER_ROUND, replace=False).tolist()
