"""The store of run records: what each finished run leaves, and what an unfinished one goes on from.

A record is one JSON file, named by the content hash of its experiment and written by temporary file and rename, so a
half-written one is never read as whole. It carries a digest of its own content.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import subprocess
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from fedlib import __version__, paths
from fedlib.experiment import NUMERICS, Experiment
from fedlib.spec import InputError, unknown

TRACE = ("train_loss", "weight_norm")
"""Series kept to full precision, from which a replay tells whether this code still gives these numbers."""

LAST = 3
"""Evaluations over which a final value is averaged: one alone jumps with the round, more reach back into the rise."""

EMBEDDED = "digits"
"""The data set that every machine has: its records are cached, those of all others belong to the project."""


COMMAND = "FEDLIB_COMMAND"
"""Environment variable with the command that executes the chapter under way; plain Jupyter does not set it."""


class StorageError(RuntimeError):
    """A file of the store cannot be read or written; the message names it and says what to do."""


@dataclass(frozen=True)
class Record:
    """What a run leaves."""

    experiment: Experiment
    series: dict[str, dict[str, list]]
    """Per name, ``round`` and ``value``: lists of equal length."""
    provenance: dict[str, Any]
    path: Path | None = None

    @property
    def id(self) -> str:
        return self.experiment.id

    @property
    def stale(self) -> bool:
        """Whether an older numerics version of the code made it."""
        return self.provenance["numerics"] != NUMERICS

    def _series(self, name: str) -> dict[str, list]:
        if name not in self.series:
            raise unknown(f"series of record {self.id}", name, self.series)
        return self.series[name]

    def rounds(self, name: str) -> np.ndarray:
        """The rounds in which series `name` was measured, (m,)."""
        return np.array(self._series(name)["round"])

    def values(self, name: str) -> np.ndarray:
        """The values of series `name`, (m, ...)."""
        return np.array(self._series(name)["value"])

    def last(self, name: str, count: int = 1) -> Any:
        """The last value of a series, or the mean of its last `count` values."""
        values = self._series(name)["value"]
        return values[-1] if count == 1 else np.mean(np.array(values[-count:]), axis=0)

    def at(self, name: str, round: int) -> Any:
        """The value of a series in one round."""
        series = self._series(name)
        if round not in series["round"]:
            raise InputError(f"record {self.id} has no {name} of round {round} (allowed: {series['round']})")
        return series["value"][series["round"].index(round)]

    def to_json(self) -> str:
        """The file's content. Everything but the trace is rounded to seven significant digits."""
        series = {n: s if n in TRACE else s | {"value": rounded(s["value"])} for n, s in sorted(self.series.items())}
        body = {"id": self.id, "experiment": self.experiment.to_dict(), "provenance": self.provenance, "series": series}
        return json.dumps(body | {"digest": digest(body)}, separators=(",", ":"), allow_nan=False)


def rounded(value: Any) -> Any:
    """Numbers of a nested value to seven significant digits."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return value


def digest(body: dict[str, Any]) -> str:
    """SHA-256 of a record's canonical JSON."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def parse(text: str, path: Path) -> Record:
    """A record from its file's content; :class:`StorageError` when it is damaged."""
    remedy = "delete it to train it again, or restore it from version control"
    try:
        body = json.loads(text)
        claimed = body.pop("digest")
        if digest(body) != claimed:
            raise StorageError(f"record {path} was changed after it was written (its digest does not fit): {remedy}")
        record = Record(Experiment.from_dict(body["experiment"]), body["series"], body["provenance"], path)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"record {path} is damaged ({error}): {remedy}") from None
    if record.id != body["id"]:
        raise StorageError(f"record {path} says id {body['id']}, but its experiment has id {record.id}: {remedy}")
    return record


def write(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all; :class:`StorageError` says why it could not be."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(
            f"cannot write {path}: {error.strerror}; finished rounds are kept, run again to go on"
        ) from None


def serialised(value: Any) -> bytes:
    """Tensors and plain types as torch stores them."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


class Store:
    """Finished records under two roots, committed and cached; unfinished runs and weights in the cache."""

    def __init__(self, committed: Path | None = None, cache: Path | None = None) -> None:
        self.committed = paths.committed() if committed is None else committed
        self.cache = paths.cache() if cache is None else cache

    def path(self, experiment: Experiment) -> Path:
        """Where the record of `experiment` belongs."""
        root = self.cache / "records" if experiment.dataset == EMBEDDED else self.committed
        return root / experiment.dataset / f"{experiment.id}.json"

    def get(self, experiment: Experiment) -> Record | None:
        """The experiment's record, or None. A stale one of the cache counts as missing: it is simply trained again."""
        path = self.path(experiment)
        try:
            record = parse(path.read_text(), path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"cannot read record {path}: {error.strerror}") from None
        return None if record.stale and path.is_relative_to(self.cache) else record

    def put(self, record: Record) -> Record:
        """Store a finished record."""
        path = self.path(record.experiment)
        write(path, record.to_json().encode())
        return parse(path.read_text(), path)

    def files(self) -> list[Path]:
        """All record files, committed ones first."""
        return [path for root in (self.committed, self.cache / "records") for path in sorted(root.glob("*/*.json"))]

    def records(self) -> Iterator[Record]:
        """All records; raises :class:`StorageError` at the first damaged one."""
        for path in self.files():
            yield parse(path.read_text(), path)

    # -- the runs of a chapter

    def _chapter(self, chapter: str, edition: str) -> Path:
        root = self.cache / "records" if edition == EMBEDDED else self.committed
        return root / f"{chapter}-{edition}.json"

    def note_chapter(self, chapter: str, edition: str, parameters: dict[str, Any], runs: Iterable[str]) -> None:
        """Note which records (dataset/id) the book's execution of a chapter stands on: others are not the book's.

        The list of a committed edition is committed with its records.
        """
        body = {"chapter": chapter, "edition": edition, "parameters": parameters, "runs": sorted(runs)}
        write(self._chapter(chapter, edition), (json.dumps(body, indent=1) + "\n").encode())

    def of_chapter(self, chapter: str, edition: str) -> list[Record]:
        """The records that the book's execution of a chapter stands on; none where it was not executed.

        Raises :class:`StorageError` for one that is missing or damaged.
        """
        try:
            runs = json.loads(self._chapter(chapter, edition).read_text())["runs"]
        except FileNotFoundError:
            return []
        records = []
        for run in runs:
            found = [root / f"{run}.json" for root in (self.committed, self.cache / "records")]
            path = next(filter(Path.exists, found), None)
            if path is None:
                raise StorageError(
                    f"record {run} of chapter {chapter} ({edition}) is missing: "
                    f"`fedlib run {chapter} --edition {edition}` trains it again, or restore it from version control"
                )
            records.append(parse(path.read_text(), path))
        return records

    # -- unfinished runs

    @contextmanager
    def lock(self, experiment: Experiment) -> Iterator[None]:
        """Only one process at a time works on an experiment; the others wait and find its record."""
        path = self.cache / "runs" / f"{experiment.id}.lock"
        lock = FileLock(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except (OSError, Timeout) as error:
            raise StorageError(f"cannot lock {path}: {error}") from None
        try:
            yield
        finally:
            lock.release()

    def _state(self, experiment: Experiment) -> Path:
        return self.cache / "runs" / f"{experiment.id}.pt"

    def save_state(self, experiment: Experiment, state: dict[str, Any]) -> None:
        """Store what an unfinished run goes on from."""
        write(self._state(experiment), serialised(state | {"experiment": experiment.to_dict()}))

    def load_state(self, experiment: Experiment) -> dict[str, Any] | None:
        """What a killed run left; None when it left nothing that can be read, and a warning then."""
        path = self._state(experiment)
        try:
            state = torch.load(path, weights_only=True)
        except FileNotFoundError:
            return None
        except Exception as error:  # torch names no common error for a damaged file
            path.unlink(missing_ok=True)
            warnings.warn(f"{path} cannot be read ({error}): run {experiment.id} starts afresh", stacklevel=2)
            return None
        state.pop("experiment", None)
        return state if state.pop("numerics", None) == NUMERICS else None

    def drop_state(self, experiment: Experiment) -> None:
        """Forget an unfinished run, which is finished now."""
        self._state(experiment).unlink(missing_ok=True)

    def unfinished(self) -> list[Path]:
        """The states of unfinished runs, by name the experiments' ids."""
        return sorted((self.cache / "runs").glob("*.pt"))

    def peek(self, path: Path) -> tuple[Experiment, dict[str, Any]] | None:
        """What an unfinished run is and what it has stored, to look at while it goes on.

        Its weights are not read: 2 ms for a state of 264 MB.

        None where the state is gone, or is that of another version of the code.
        """
        try:
            state = torch.load(path, weights_only=True, mmap=True)
            return (Experiment.from_dict(state["experiment"]), state) if state["numerics"] == NUMERICS else None
        except Exception:  # torch names no common error; the run itself says what is wrong with a damaged one
            return None

    def trained_now(self, experiment: Experiment) -> bool:
        """Whether a process works on the experiment at this moment."""
        lock = FileLock(self.cache / "runs" / f"{experiment.id}.lock")
        try:
            with lock.acquire(timeout=0):
                return False
        except Timeout:
            return True

    # -- weights by round, for measures that compare two runs

    def weights(self, experiment: Experiment, round: int) -> Path:
        return self.cache / "weights" / experiment.id / f"{NUMERICS}-{round}.pt"

    def save_weights(self, experiment: Experiment, round: int, w: Tensor) -> None:
        write(self.weights(experiment, round), serialised(w))


@lru_cache(maxsize=1)
def commit() -> str:
    """The commit of the checkout in use, with ``+`` when fedlib has uncommitted changes; "unknown" without git."""

    def git(*words: str) -> str:
        folder = Path(__file__).parent
        return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD")[:12] + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def provenance(
    experiment: Experiment, fingerprint: str, seconds: float, workers: int, threads: int, device: str = "cpu"
) -> dict[str, Any]:
    """Where a record comes from: code, data, machine, time. `device` is where its clients were trained."""
    names = ("torch", "torchvision", "numpy")
    return {
        "numerics": NUMERICS,
        "commit": commit(),
        "versions": {"python": platform.python_version(), "fedlib": __version__}
        | {name: metadata.version(name) for name in names},
        "data": fingerprint,
        "seed": experiment.seed,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "workers": workers,
        "threads": threads,
        "machine": f"{platform.system()} {platform.machine()}, {processor()}",
        "device": device,
    }


@lru_cache(maxsize=1)
def processor() -> str:
    """The processor's name and torch's instruction set, on which the last digits of a result can depend."""
    name = platform.processor() or "unknown processor"
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"
