"""What federation costs: rounds of fedlib and of the bare loop in turn, within one program.

It is a few percent, less than a machine's speed changes from one program to the next. ``python -m benchmarks.limit``
measures it on this processor, and keeps what was measured on others.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import page, workload
from benchmarks.contenders import bare, ours
from benchmarks.turn import WARM
from fedlib import federation, workers
from fedlib.records import commit, processor

ROUNDS = 100
"""Of each, in each number format."""


def measure(images: Path, cores: int, rounds: int = ROUNDS) -> dict[str, dict[str, Any]]:
    """By processor, this one alone: what :func:`in_turn` gives for each number format, and when and with what."""
    body = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit(), "pairs_of": "rounds"}
    for name in ("fp32", "bf16"):
        # In a process of its own, which trains on random images whatever data set it is asked for.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
            body[name] = fresh.submit(in_turn, images, cores, rounds, name == "bf16").result()
    return {processor(): body}


def in_turn(images: Path, cores: int, rounds: int, bf16: bool) -> dict[str, list[float]]:
    """Speed of fedlib over that of the bare loop in each pair of rounds, of which either is first every second time.

    "alone": no process of the bare loop waits for another, so that its round takes the mean of their times.
    "waiting": they wait after each round, as federated clients must, so that it takes the longest of them.
    """
    context = multiprocessing.get_context("spawn")
    barrier, took = context.Barrier(cores + 1), context.SimpleQueue()
    for clients in bare.shares(cores):
        context.Process(target=_bare, args=(images, clients, bf16, barrier, took), daemon=True).start()
    ours.prepare(images, cores)
    play = federation.play(federation.begin(ours.experiment(bf16), workers=cores))

    def federated() -> float:
        start = workload.now()
        next(play)
        return workload.now() - start

    def unfederated() -> list[float]:
        barrier.wait()
        return [took.get() for _ in range(cores)]

    ratios: dict[str, list[float]] = {"alone": [], "waiting": []}
    for i in range(WARM + rounds):
        seconds = {act: act() for act in (federated, unfederated)[:: -1 if i % 2 else 1]}
        if i >= WARM:
            ratios["alone"].append(sum(seconds[unfederated]) / cores / seconds[federated])
            ratios["waiting"].append(max(seconds[unfederated]) / seconds[federated])
    workers.close()  # a child process does not end before its own children
    return ratios


def _bare(images: Path, clients: int, bf16: bool, barrier: Any, took: Any) -> None:
    loop = bare.training(images, clients, bf16)
    while True:
        barrier.wait()
        start = workload.now()
        next(loop)
        took.put(workload.now() - start)


def main(cores: int = 2) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    with tempfile.TemporaryDirectory() as folder:
        workload.write(images := Path(folder))
        measured = measure(images, cores)
    body = json.loads(page.LATEST.read_text())
    body["to_limit"] |= measured
    page.write(body)
    print(page.to_limit(measured))


if __name__ == "__main__":
    main()
