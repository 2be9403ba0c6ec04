"""What differs between two records, or between two executions of a chapter, and whether the results do.

Results are the final test accuracies, mean of the last three evaluations, over the seeds of one setting. Two of them
with 95 % intervals that do not overlap differ; with intervals that do, the runs do not say.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlib import paths
from fedlib.records import LAST, TRACE, Record, StorageError, Store, parse
from fedlib.spec import InputError, in_words, unknown
from fedlib.statistics import Estimate, estimate


@dataclass(frozen=True)
class Execution:
    """An executed chapter: its parameters, and the records that it used."""

    path: Path
    chapter: str
    parameters: dict[str, Any]
    records: list[Record]


@dataclass(frozen=True)
class Pair:
    """One setting on both sides."""

    setting: str
    a: Estimate | None
    b: Estimate | None

    @property
    def overlap(self) -> bool | None:
        """Whether the intervals have a point in common; None where a side is missing or has one seed."""
        if self.a is None or self.b is None or min(self.a.n, self.b.n) < 2:
            return None
        return self.a.low <= self.b.high and self.b.low <= self.a.high


@dataclass(frozen=True)
class Difference:
    """What differs: settings (name, in a, in b), results by setting, and numbers of the runs themselves."""

    settings: list[tuple[str, Any, Any]]
    results: list[Pair]
    series: list[tuple[str, Any, Any]]


def find(name: str, store: Store) -> Record | Execution:
    """A record by id or file, or an executed chapter by its notebook; :class:`InputError` for what is neither."""
    path = Path(name)
    if path.suffix == ".ipynb":
        return _execution(path)
    if path.suffix == ".json":
        try:
            return parse(path.read_text(), path)
        except OSError as error:
            raise InputError(f"{name} cannot be read: {error.strerror}") from None
    files = [file for file in store.files() if file.stem.startswith(name)]
    if not files:
        raise unknown("record", name, [file.stem for file in store.files()])
    if len(files) > 1:
        raise InputError(f"{len(files)} records have an id that begins with {name!r} (allowed: just one)")
    return parse(files[0].read_text(), files[0])


def _execution(path: Path) -> Execution:
    try:
        made = json.loads(path.read_text())["metadata"]["fedlib"]
        used = [paths.root() / record["file"] for record in made["records"].values()]
        chapter, parameters = made["chapter"], made["parameters"]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path} is not a chapter that `fedlib run` has executed") from None
    gone = [file.stem for file in used if not file.exists()]
    if gone:
        raise StorageError(f"{path} stands on records that are not here: {', '.join(gone)}; run the chapter again")
    return Execution(path, chapter, parameters, [parse(file.read_text(), file) for file in used])


def compare(a: Record | Execution, b: Record | Execution, store: Store) -> Difference:
    """Two records, or two executions; raises :class:`InputError` for one of each."""
    if isinstance(a, Record) and isinstance(b, Record):
        return of_records(a, b, store)
    if isinstance(a, Execution) and isinstance(b, Execution):
        return of_executions(a, b)
    raise InputError("a record and a chapter (allowed: two records, or two executed chapters)")


def final(records: Iterable[Record]) -> Estimate:
    """Final test accuracy over seeds."""
    return estimate([record.last("test_accuracy", LAST) for record in records])


def of_records(a: Record, b: Record, store: Store) -> Difference:
    """Two runs; their results are estimated with all seeds of their settings that are in the store."""
    settings = [(f"experiment.{n}", x, y) for n, x, y in _differing(a.experiment.to_dict(), b.experiment.to_dict())]
    settings += [(f"provenance.{n}", x, y) for n, x, y in _differing(a.provenance, b.provenance)]
    known = list(store.records())
    sides = [
        final({r.id: r for r in (one, *known) if r.experiment == one.experiment.but(seed=r.experiment.seed)}.values())
        for one in (a, b)
    ]
    return Difference(settings, [Pair("final test accuracy", *sides)], list(_numbers(a, b)))


def _numbers(a: Record, b: Record) -> Iterable[tuple[str, Any, Any]]:
    """Of each series: the first round in which the two differ; the trace comes first."""
    for name in sorted(a.series.keys() | b.series.keys(), key=lambda name: (name not in TRACE, name)):
        if name not in a.series or name not in b.series:
            yield name, *("measured" if name in r.series else "not measured" for r in (a, b))
            continue
        one, other = (dict(zip(r.series[name]["round"], r.series[name]["value"], strict=True)) for r in (a, b))
        first = next((round for round in sorted(one.keys() & other.keys()) if one[round] != other[round]), None)
        if first is not None:
            yield f"{name}, round {first}", one[first], other[first]


def of_executions(a: Execution, b: Execution) -> Difference:
    """Two executions; settings are paired by the fields that vary within an execution."""
    settings = [("chapter", a.chapter, b.chapter)] if a.chapter != b.chapter else []
    settings += [(f"parameter {n}", x, y) for n, x, y in _differing(a.parameters, b.parameters)]
    vary = {name for one in (a, b) for name in _varying(one.records)}
    sides = [_by_setting(one.records, vary) for one in (a, b)]
    results = [
        Pair(setting, *(final(side[setting]) if setting in side else None for side in sides))
        for setting in dict.fromkeys((*sides[0], *sides[1]))
    ]
    return Difference(settings, results, [])


def _varying(records: list[Record]) -> set[str]:
    bodies = [record.experiment.to_dict() for record in records]
    return {n for n in bodies[0] if n not in ("seed", "measures") and len({repr(body[n]) for body in bodies}) > 1}


def _by_setting(records: list[Record], fields: set[str]) -> dict[str, list[Record]]:
    groups = defaultdict(list)
    for record in records:
        words = (f"{name.replace('_', ' ')} {in_words(getattr(record.experiment, name))}" for name in sorted(fields))
        groups[", ".join(words) or "all runs"].append(record)
    return dict(groups)


def _differing(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(name, a.get(name), b.get(name)) for name in dict.fromkeys((*a, *b)) if a.get(name) != b.get(name)]
