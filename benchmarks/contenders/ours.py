"""fedlib, through the same round loop that every chapter uses; and its round without a single training step."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import workload
from fedlib import datasets, federation, workers
from fedlib.experiment import Experiment
from fedlib.methods import Method
from fedlib.models import CNN


class NoSteps(Method):
    """A client that trains for no step: what remains of a round is its overhead."""

    def start(self, client: Any) -> None:
        client.max_steps = 0


def experiment(bf16: bool = False, **changes: Any) -> Experiment:
    """The workload with some fields changed, given as in JSON; it is stopped before the round that evaluates."""
    e = Experiment(
        dataset="cifar10", clients=workload.CLIENTS, per_round=workload.PER_ROUND, rounds=10**6, evaluate_every=10**6,
        batch_size=workload.BATCH, lr=workload.LR, model=CNN(channels=(32, 64), dense=(128,)),
        precision="bf16" if bf16 else "fp32",
    )  # fmt: skip
    return Experiment.from_dict(e.to_dict() | changes)


def run(
    images: Path, rounds: int, threads: int, bf16: bool = False, empty: bool = False, **changes: Any
) -> list[float]:
    """`changes` are other fields of the experiment; `empty` leaves out the training steps."""
    prepare(images, threads)
    if empty:
        changes["methods"] = [{"name": "NoSteps"}]
    run = federation.begin(experiment(bf16, **changes), workers=threads)
    return [workload.now() for _ in federation.play(run, rounds)]


def prepare(images: Path, threads: int) -> None:
    """Have this process and `threads` workers train on the images of a folder, whatever data set they are asked for."""
    _replace(images)
    if threads > 1:
        workers.pool(threads, functools.partial(_replace, images))
        workers.wait(threads)


def _replace(images: Path) -> None:
    x, y = workload.read(images, "c")
    nothing = np.zeros(len(y), np.int64)
    random = datasets.Dataset(
        "random", x, y, x[:10], y[:10], nothing, nothing[:10], tuple("0123456789"), "", (0.5,) * x.shape[-1],
        (0.25,) * x.shape[-1],
    )  # fmt: skip
    datasets.load = lambda name: random
