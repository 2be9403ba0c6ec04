"""Random generators keyed by what they are for.

Every draw of a run comes from a generator keyed by (seed, purpose, round, client), never from shared state. So the
numbers do not depend on the number of workers, on the order of execution, or on where a killed run went on.
"""

from __future__ import annotations

import zlib

import numpy as np
import torch


def _key(seed: int, purpose: str, round: int, client: int) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), round, client])


def numpy(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """A NumPy generator for `purpose`, for example ``numpy(seed, "batches", round, client)``; all keys are >= 0."""
    return np.random.Generator(np.random.PCG64(_key(seed, purpose, round, client)))


def torch_(seed: int, purpose: str, round: int = 0, client: int = 0) -> torch.Generator:
    """The same as a torch CPU generator."""
    return torch.Generator().manual_seed(int(_key(seed, purpose, round, client).generate_state(1, np.uint64)[0] >> 1))
