"""How fedlib's cost grows: time and memory of a round against one quantity at a time, the rest as the workload."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import workload
from benchmarks.turn import Contender, take

SWEEPS: dict[str, dict[float, dict[str, Any]]] = {
    "clients per round": {k: {"per_round": k} for k in (2, 5, 10, 20, 50, 100)},
    "batch size": {b: {"batch_size": b} for b in (4, 8, 16, 32, 64, 128, 500)},
    "width of the network": {
        w: {"model": {"name": "CNN", "channels": [w, 2 * w], "dense": [4 * w]}} for w in (4, 8, 16, 32, 64, 128)
    },
    "clients in total": {
        n: {"clients": n, "batch_size": 5, "dataset": "mnist", "partition": {"name": "Resampled", "size": 50}}
        for n in (100, 1_000, 10_000, 100_000)
    },
}
"""Per quantity, its values and the fields of the experiment that they stand for.

Clients in total: 60,000 images of 28x28, 50 for each client, 10 clients per round, batches of 5.
"""


def measure(folder: Path, threads: int, rounds: int) -> Iterator[dict[str, Any]]:
    """One turn of fedlib in fp32 for each point, and a second one for its memory."""
    for images, count, shape in ((folder / "cifar", 50_000, (32, 32, 3)), (folder / "mnist", 60_000, (28, 28, 1))):
        workload.write(images, count, shape)
    for quantity, points in SWEEPS.items():
        for value, changes in points.items():
            contender = Contender(f"{quantity} {value}", "ours", {"threads": threads} | changes)
            images = folder / changes.get("dataset", "cifar")
            timed = take(contender, Path(sys.executable), images, rounds)
            peak = take(contender, Path(sys.executable), images, rounds, memory=True).peak_mib
            yield {"quantity": quantity, "value": value, "seconds_per_round": timed.seconds_per_round,
                   "cpu_seconds_per_round": timed.cpu_seconds_per_round, "peak_mib": peak}  # fmt: skip
