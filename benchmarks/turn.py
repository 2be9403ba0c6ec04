"""One contender's turn: its processes started, watched and measured from outside."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.workload import OWN, PER_ROUND, now

ROOT = Path(__file__).resolve().parents[1]
WARM = 1
"""Rounds before the clock starts."""


@dataclass(frozen=True)
class Contender:
    """What is measured: a module of :mod:`benchmarks.contenders`, in one of the two environments."""

    name: str
    module: str
    options: dict[str, Any]
    peer: bool = False
    """Runs in the peers' environment."""


@dataclass(frozen=True)
class Turn:
    """Measurements of one turn."""

    seconds_per_round: float
    cpu_seconds_per_round: float
    """Of all its processes together."""
    peak_mib: float | None = None
    """Of all its processes together, shared pages counted once."""

    @property
    def samples_per_second(self) -> float:
        return PER_ROUND * OWN / self.seconds_per_round


class Failed(RuntimeError):
    """A contender ended with an error; the message has the end of its output."""


def take(contender: Contender, python: Path, images: Path, rounds: int, memory: bool = False) -> Turn:
    """Run a contender for so many timed rounds after the warm ones.

    `memory` measures the peak of the proportional set sizes instead of leaving the processes alone; such a turn's speed
    should not be used.
    """
    with tempfile.TemporaryDirectory() as folder:
        result, log = Path(folder) / "ends.json", Path(folder) / "log"
        arguments = [contender.module, str(images), str(rounds + WARM), str(result), json.dumps(contender.options)]
        with log.open("w") as output:
            process = psutil.Popen(
                [python, "-m", "benchmarks.contenders", *arguments], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            times, cpu, peak = _watch(process, memory)
        finally:
            for left in (*process.children(recursive=True), process) if process.is_running() else ():
                left.kill()
        if process.returncode or not result.exists():
            raise Failed(f"{contender.name} failed ({process.returncode}):\n{log.read_text()[-3000:]}")
        ends = json.loads(result.read_text())
    start, end = ends[WARM - 1], ends[-1]
    used = np.interp(end, times, cpu) - np.interp(start, times, cpu)
    return Turn((end - start) / rounds, float(used) / rounds, peak if memory else None)


def _watch(process: psutil.Popen, memory: bool) -> tuple[list[float], list[float], float]:
    """Until the process ends: times, the CPU seconds that its tree had used by then, and its peak memory in MiB."""
    times, cpu, peak = [], [], 0.0
    spent: dict[int, float] = {}  # of those that have ended, too
    done = threading.Event()
    threading.Thread(target=lambda: (process.wait(), done.set()), daemon=True).start()
    while not done.wait(0.1):
        held = 0
        for one in _tree(process):
            try:
                used = one.cpu_times()
                spent[one.pid] = used.user + used.system
                held += one.memory_full_info().pss if memory else 0
            except psutil.Error:  # it has just ended
                continue
        times.append(now())
        cpu.append(sum(spent.values()))
        peak = max(peak, held / 2**20)
    return times, cpu, peak


def _tree(process: psutil.Popen) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []
