"""How far a sweep is, told across processes: workers append lines to a file, whoever shows progress reads it."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

VARIABLE = "FEDLIB_PROGRESS"
"""Environment variable that names the file; without it nothing is told."""

PERIOD = 0.5
"""Seconds between two looks at the file."""


def _append(line: dict[str, Any]) -> None:
    path = os.environ.get(VARIABLE)
    if path:
        with open(path, "a") as file:  # one short line: appended whole, whichever process writes
            file.write(json.dumps(line) + "\n")


def plan(rounds: dict[str, int]) -> None:
    """Say which runs are about to be trained, with their rounds."""
    if rounds:
        _append({"plan": rounds})


def report(run: str, round: int, rounds: int) -> None:
    """Say that a run has finished a round."""
    _append({"run": run, "round": round, "rounds": rounds})


def used(records: Iterable[tuple[str, Path]]) -> None:
    """Say which records, id and file, a result is made from. Whatever reads records for a chapter must say so."""
    if os.environ.get(VARIABLE):
        for run, path in records:
            _append({"used": [[run, str(path), file_digest(path)]]})


def file_digest(path: Path) -> str:
    """SHA-256 of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Tally:
    """Sums up the file's lines."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset = path, 0
        self.planned: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self.used: dict[str, tuple[str, str]] = {}
        """Of each record that was used, by id: its file, and the SHA-256 of the file."""

    def read(self) -> None:
        """Take in what has been appended since the last call."""
        with open(self.path) as file:
            file.seek(self.offset)
            for line in iter(file.readline, ""):
                if not line.endswith("\n"):
                    break
                self.offset = file.tell()
                event = json.loads(line)
                if "plan" in event:
                    self.planned |= event["plan"]
                elif "used" in event:
                    self.used |= {run: (path, digest) for run, path, digest in event["used"]}
                else:
                    self.planned.setdefault(event["run"], event["rounds"])
                    self.done[event["run"]] = event["round"]

    @property
    def runs(self) -> int:
        """Finished runs."""
        return sum(self.done.get(run) == rounds for run, rounds in self.planned.items())


@contextmanager
def shown(title: str) -> Iterator[Tally]:
    """Show the progress of all training inside: a bar with an estimate on a terminal, one line a run elsewhere.

    The tally that it gives is complete when the block has ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "progress"
        path.touch()
        outer = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = str(path)
        stop = threading.Event()
        alone = multiprocessing.parent_process() is None  # else another process may show a bar at the same place
        show = _bar if alone and sys.stderr.isatty() else _lines
        tally = Tally(path)
        thread = threading.Thread(target=show, args=(title, tally, stop), daemon=True)
        thread.start()
        try:
            yield tally
        finally:
            stop.set()
            thread.join()
            if outer is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = outer


def _bar(title: str, tally: Tally, stop: threading.Event) -> None:
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("rounds, {task.fields[runs]} runs"),
        TimeElapsedColumn(), TextColumn("elapsed,"), TimeRemainingColumn(), TextColumn("left"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None, runs="0")
        while True:
            last = stop.wait(PERIOD)
            tally.read()
            total = sum(tally.planned.values())
            runs = f"{tally.runs} of {len(tally.planned)}"
            bar.update(task, total=total or None, completed=sum(tally.done.values()), runs=runs)
            if last:
                if not total:
                    bar.update(task, visible=False)
                return


def _lines(title: str, tally: Tally, stop: threading.Event) -> None:
    start, told = time.monotonic(), 0
    while True:
        last = stop.wait(PERIOD)
        tally.read()
        if tally.runs > told:
            told = tally.runs
            print(
                f"{title}: {told} of {len(tally.planned)} runs, {time.monotonic() - start:.0f} s",
                file=sys.stderr,
                flush=True,
            )
        if last:
            return
