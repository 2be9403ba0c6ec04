"""Arrays that take long to make are made once on a machine."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

import numpy as np
from filelock import FileLock

from fedlib import paths


def array(kind: str, key: bytes, make: Callable[[], np.ndarray]) -> np.ndarray:
    """What `make` gives, from the cache's folder `kind` where it has been made before; `key` says what it depends on.

    Of several processes that want it at the same time one makes it and the others wait. It is written whole or not at
    all.
    """
    path = paths.cache() / kind / f"{hashlib.sha256(key).hexdigest()[:16]}.npy"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.exists():
            unfinished = path.with_suffix(f".{os.getpid()}")
            with open(unfinished, "wb") as file:
                np.save(file, make())
            os.replace(unfinished, path)
        return np.load(path)
