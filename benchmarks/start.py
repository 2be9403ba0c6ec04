"""How long a run takes to start: from the launch of Python to the end of the first batch, its data cached."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

from benchmarks.turn import ROOT
from fedlib import datasets

DATA = ("digits", "cifar10")

CODE = """
import sys, time

if __name__ == "__main__":
    from fedlib import federation
    from fedlib.experiment import Experiment
    from fedlib.methods import StepBudget

    def first(received, result):
        print(time.time())
        raise SystemExit

    federation.receive = first
    one_batch = Experiment(dataset=sys.argv[1], methods=(StepBudget(shares=(1.0,), steps=(1,)),))
    for run in federation.play(federation.begin(one_batch, workers=int(sys.argv[2]))):
        pass
"""


def measure(dataset: str, workers: int, repetitions: int) -> float:
    """Median seconds; the first of `repetitions` + 1 launches, which fills the file cache, does not count."""
    datasets.load(dataset)  # caches it, or says what is missing
    seconds = []
    for _ in range(repetitions + 1):
        start = time.time()
        command = [sys.executable, "-c", CODE, dataset, str(workers)]
        run = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        seconds.append(float(run.stdout) - start)
    return float(np.median(seconds[1:]))
