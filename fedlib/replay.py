"""Do the published numbers come from this code? Replays of the first rounds of stored records, compared one by one.

A replay trains the record's experiment again without its measures, on which training does not depend, and compares
every series that it yields with the stored one: loss, norm of the weights, accuracies, bytes and gradients.

**Tolerance.** On one machine the numbers are the same to the last bit, whatever the number of workers. Elsewhere sums
are taken in another order, and training amplifies the difference from round to round. Measured by running torch, oneDNN
and MKL on other instruction sets of one processor, first chapter's settings, largest relative difference of loss and
norm: fp32, AVX2 against AVX-512, digits and CIFAR-10: 2e-8 and 7e-8 after round 1, 9e-8 at most over six rounds. bf16,
AVX-512 with and without its bf16 instructions, CIFAR-10: 0 after round 1, 2e-6 after round 3. :data:`TOLERANCE` leaves
ten times and, since processors with other bf16 units were not at hand, fifty times that; it grows by :data:`GROWTH`
with each round. For comparison, FedProx with mu for mu/2 (mu = .01) changes loss or norm by more than that in its first
round already: tests/test_replay.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from fedlib import datasets, federation
from fedlib.experiment import NUMERICS
from fedlib.records import EMBEDDED, TRACE, Record, StorageError, Store, parse, rounded

TOLERANCE = {"fp32": 1e-6, "bf16": 1e-4}
"""Relative difference allowed after the first round, by number format."""

GROWTH = 1.5
"""Factor by which the tolerance grows with each further round."""

LIMIT = 0.05
"""Largest tolerance at which a comparison still means something; later rounds are not compared."""


class NotVerified(RuntimeError):
    """Some records could not be verified; the message names them."""


class State(StrEnum):
    MATCHES = "matches"
    DIFFERS = "differs"
    STALE = "stale"
    DAMAGED = "damaged"
    NO_DATA = "no data"


@dataclass(frozen=True)
class Mismatch:
    """A number that came out otherwise."""

    series: str
    round: int
    stored: Any
    replayed: Any
    tolerance: float

    def __str__(self) -> str:
        return (
            f"{self.series} of round {self.round}: stored {self.stored!r}, now {self.replayed!r} "
            f"(allowed: a relative difference of {self.tolerance:.1g})"
        )


@dataclass(frozen=True)
class Replay:
    """What a replay of one record found."""

    name: str
    """The record's id, or the file of one that cannot be read."""
    state: State
    rounds: int = 0
    """Rounds that were replayed and compared."""
    mismatches: tuple[Mismatch, ...] = ()
    reason: str = ""
    dataset: str = ""


def tolerance(precision: str, round: int) -> float:
    """Relative difference allowed in a round (from 1)."""
    return TOLERANCE[precision] * GROWTH ** (round - 1)


def available(name: str) -> bool:
    """Whether a data set can be had here without a download."""
    return name == EMBEDDED or datasets.is_local(name)


def replay(record: Record, rounds: int | None = None, workers: int = 1) -> Replay:
    """Train the first `rounds` of a record again (None: all) and compare what both have."""
    e = record.experiment
    if record.stale:
        made = record.provenance["numerics"]
        return Replay(
            record.id, State.STALE, reason=f"made by numerics version {made}, this is {NUMERICS}", dataset=e.dataset
        )
    if not available(e.dataset):
        return Replay(record.id, State.NO_DATA, reason=f"data set {e.dataset} is not here", dataset=e.dataset)
    comparable = [round for round in range(1, e.rounds + 1) if tolerance(e.precision, round) < LIMIT]
    until = min(rounds or e.rounds, comparable[-1])
    run = federation.begin(e.but(measures=()), workers=workers)
    if run.setting.dataset.fingerprint != record.provenance["data"]:
        found = run.setting.dataset.fingerprint[:12]
        reason = f"the data set {e.dataset} has fingerprint {found}, the record's {record.provenance['data'][:12]}"
        return Replay(record.id, State.DIFFERS, reason=reason, dataset=e.dataset)
    for _ in federation.play(run, until):
        pass
    mismatches = tuple(compare(record, run.series, len(run.setting.dataset.y_test)))
    return Replay(record.id, State.DIFFERS if mismatches else State.MATCHES, until, mismatches, dataset=e.dataset)


def compare(record: Record, series: dict[str, dict[str, list]], images: int) -> Iterator[Mismatch]:
    """The first number of each series of a replay that is not the record's.

    A series that the record lacks altogether came with a later version of the code and says nothing of the numbers,
    but the trace is in every record. Accuracies may also differ by one of the `images` of the test set, which falls to
    either side of a boundary.
    """
    for name, one in series.items():
        if name not in record.series and name not in TRACE:
            continue
        stored = dict(zip(*record.series.get(name, {"round": [], "value": []}).values(), strict=True))
        for round, value in zip(one["round"], one["value"], strict=True):
            allowed = tolerance(record.experiment.precision, round)
            image = np.size(value) * 1.01 / images if "accuracy" in name else 0.0
            value = value if name in TRACE else rounded(value)
            if round not in stored or not _close(stored[round], value, allowed, image):
                yield Mismatch(name, round, stored.get(round), value, allowed)
                break


def _close(stored: Any, value: Any, relative: float, absolute: float) -> bool:
    return np.shape(stored) == np.shape(value) and np.allclose(value, stored, rtol=relative, atol=absolute)


def sample(paths: Iterable[Path], count: int | None, key: str) -> list[Path]:
    """`count` of the files (None: all), those that `key`, a commit, picks: another commit picks others.

    A sample is drawn from records whose data set is here; among all files one that is not is a failure.
    """
    order = sorted(paths, key=lambda path: hashlib.sha256(f"{key}/{path.stem}".encode()).digest())
    return order if count is None else [path for path in order if available(path.parent.name)][:count]


def verify(files: Iterable[Path], rounds: int | None = None, workers: int = 1) -> Iterator[Replay]:
    """Replay record files one after the other. `rounds` None: all rounds of digits, the first of other data sets."""
    for path in files:
        try:
            record = parse(path.read_text(), path)
        except (StorageError, OSError) as error:
            yield Replay(str(path), State.DAMAGED, reason=str(error))
            continue
        short = 1 if rounds is None and record.experiment.dataset != EMBEDDED else rounds
        yield replay(record, short, workers)


def records_of(store: Store, edition: str | None, ids: Iterable[str]) -> list[Path]:
    """Files of the store's records: of one edition, or with ids that begin so; each prefix must fit one at least.

    The digits edition has the embedded data set, the other edition all further ones.
    """
    from fedlib.spec import unknown

    files = [path for path in store.files() if not edition or (path.parent.name == EMBEDDED) == (edition == EMBEDDED)]
    ids = tuple(ids)
    for prefix in ids:
        if not any(path.stem.startswith(prefix) for path in files):
            raise unknown("record", prefix, [path.stem for path in files])
    return [path for path in files if not ids or path.stem.startswith(ids)]
