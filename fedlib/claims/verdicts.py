"""From tests and records to verdicts.

Which records: those that the executed chapter of an edition stands on (:meth:`fedlib.records.Store.of_chapter`), or, in
a chapter, those of this very execution. Other runs in the store do not count. Among them a test selects by fields; each
run of a test must be one record per seed, and all of a test's runs must have the same settings but for the seed, the
measures and the fields in which the selections differ. Anything else is an error that names the fields, never a choice.
With one exception: where runs of several lengths (rounds, training images) fit, those of one length are taken, of the
length that has most of the test's runs, and of such lengths the longest.

A test's number is estimated over seeds with its 95 % t interval (:func:`fedlib.statistics.estimate`), and

    reproduced       the interval lies in the region of the claim
    partly           it lies in the region of the claim's direction
    not reproduced   it lies outside the region of the claim
    inconclusive     none of these: the interval is too wide to say
    not run yet      there are no such runs

A claim of several tests is reproduced if all are, and partly if some are reproduced or partly. It is not reproduced if
no test is better than that and at least one says so.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from fedlib.claims import expressions
from fedlib.claims.expressions import Family
from fedlib.claims.ledger import PARTS, VARY, Claim, Selection, Test, load, named
from fedlib.experiment import Experiment
from fedlib.parameters import Edition
from fedlib.records import Record, Store
from fedlib.spec import InputError, brief
from fedlib.statistics import Estimate, estimate

CALCULATION = "calculation"
"""In place of an edition: a claim that needs no run."""

CALCULATIONS = 5
"""Draws of a test that needs no run."""

ALIKE = ("seed", "measures", "evaluate_every")
"""Fields on which the numbers of a run's training do not depend, or over which is averaged."""

LENGTH = ("rounds", "train_images")
"""Fields that say how long a run is; images of None are all there are."""


class Verdict(StrEnum):
    REPRODUCED = "reproduced"
    PARTLY = "partly"
    NOT_REPRODUCED = "not reproduced"
    INCONCLUSIVE = "inconclusive"
    NOT_TESTABLE = "not testable here"
    NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Outcome:
    """What one test gave."""

    test: Test
    verdict: Verdict
    estimate: Estimate | None = None
    seeds: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    """The number of each seed."""
    records: tuple[Record, ...] = ()
    missing: tuple[str, ...] = ()
    """Runs of the test that are not there, in words."""

    def to_dict(self) -> dict[str, Any]:
        e = self.estimate
        finite = e is not None and e.n > 1
        return {
            "test": self.test.name,
            "expression": self.test.estimate,
            "reproduced_if": str(self.test.reproduced),
            "partly_if": str(self.test.partly) if self.test.partly else None,
            "verdict": self.verdict.value,
            "estimate": e and e.mean,
            "low": e.low if finite else None,
            "high": e.high if finite else None,
            "seeds": list(self.seeds),
            "values": list(self.values),
            "records": [record.id for record in self.records],
            "missing": list(self.missing),
        }


@dataclass(frozen=True)
class Result:
    """What an edition's runs say to a claim."""

    claim: Claim
    edition: str | None
    """None: the runs of this execution of a chapter, or a claim that needs none."""
    verdict: Verdict
    outcomes: tuple[Outcome, ...] = ()

    @property
    def stale(self) -> list[str]:
        """Ids of the records that an older numerics version made."""
        return sorted({record.id for outcome in self.outcomes for record in outcome.records if record.stale})

    def to_dict(self) -> dict[str, Any]:
        tests = [outcome.to_dict() for outcome in self.outcomes]
        return {"edition": self.edition, "verdict": self.verdict.value, "stale": self.stale, "tests": tests}


@dataclass(frozen=True)
class Standing:
    """A claim with the results of all editions."""

    claim: Claim
    source: str
    results: dict[str, Result] = field(default_factory=dict)

    @property
    def headline(self) -> Result:
        """The cifar10 edition's result where it has one, else that of digits."""
        run = [r for r in reversed(self.results.values()) if r.verdict is not Verdict.NOT_RUN]
        return run[0] if run else next(reversed(self.results.values()))

    def to_dict(self) -> dict[str, Any]:
        c = self.claim
        return {
            "id": c.key, "source": self.source, "statement": c.statement, "article": c.article,
            "paper": c.paper or None, "chapter": c.chapter, "figure": c.figure or None,
            "verdict": self.headline.verdict.value, "headline_edition": self.headline.edition,
            "not_testable": c.not_testable.to_dict() if c.not_testable else None,
            "editions": {name: result.to_dict() for name, result in self.results.items()},
        }  # fmt: skip


# ---------------------------------------------------------------- selection


def matches(selection: Selection, experiment: dict[str, Any]) -> bool:
    """Whether an experiment (its :func:`fields`) is one of the selected."""
    for key, wanted in ({"methods": []} | selection).items():
        given = experiment[key]
        if key == "measures":
            if not all(any(_same(named(part), other) for other in given) for part in wanted):
                return False
        elif key in PARTS and isinstance(wanted, list):
            if len(given) != len(wanted) or not all(map(_same, map(named, wanted), given)):
                return False
        elif not _same(named(wanted) if key in PARTS else wanted, given):
            return False
    return True


def _same(wanted: Any, given: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(given, dict) and all(k in given and _same(v, given[k]) for k, v in wanted.items())
    if isinstance(wanted, list):
        return isinstance(given, list) and len(wanted) == len(given) and all(map(_same, wanted, given))
    if isinstance(wanted, str) and isinstance(given, dict):
        return given.get("name") == wanted
    return wanted == VARY or wanted == given


def fields(experiment: Experiment) -> dict[str, Any]:
    """An experiment's fields as JSON types, without methods that change nothing."""
    body = experiment.to_dict()
    return body | {"methods": [method for method in body["methods"] if method["name"] != "FedAvg"]}


def starred(selection: Selection, experiment: dict[str, Any]) -> Any:
    """The experiment's value where the selection has ``vary``; None without one."""
    for key, wanted in selection.items():
        wanted_parts, given_parts = (v if isinstance(v, list) else [v] for v in (wanted, experiment[key]))
        if wanted == VARY:
            return experiment[key]
        if key in PARTS and key != "measures":
            for part, given in zip(wanted_parts, given_parts, strict=True):
                for name, value in named(part).items():
                    if value == VARY:
                        return given[name]
    return None


def _key(body: dict[str, Any], without: Iterable[str]) -> tuple:
    return tuple((name, repr(value)) for name, value in sorted(body.items()) if name not in without)


def select(test: Test, records: Iterable[Record], dataset: str | None) -> tuple[dict[int, dict[str, Any]], list[str]]:
    """Per seed, what each run name of a test stands for; and the runs that are missing, in words.

    `dataset` is preferred where a selection names none and runs on several data sets would fit; of several lengths, the
    longest that is complete. Raises :class:`InputError` where more than one run would fit.
    """
    known = [(record, fields(record.experiment)) for record in records]
    if dataset in {body["dataset"] for _, body in known} and not any("dataset" in s for s in test.runs.values()):
        known = [(record, body) for record, body in known if body["dataset"] == dataset]
    free = {*ALIKE, *test.differ, *_differing(test.runs.values())}
    lengths: dict[tuple[float, ...], list] = defaultdict(list)
    for record, body in known:
        lengths[tuple(body[name] or math.inf for name in LENGTH if name not in free)].append((record, body))
    # All images are more than any number; between two runs of all of them the rounds decide.
    ascending = sorted(lengths, key=lambda length: (math.prod(length), length))
    groups = [lengths[key] for key in ascending] or [[]]  # the empty one says what is missing
    answers = [_of_one_length(test, some, free) for some in groups]
    return max(reversed(answers), key=lambda answer: (_runs(answer[0]), -len(answer[1])))


def _runs(chosen: dict[int, dict[str, Any]]) -> int:
    """How many runs a seed has."""
    one = next(iter(chosen.values()), {})
    return sum(len(run) if isinstance(run, Family) else 1 for run in one.values())


def _of_one_length(
    test: Test, known: list[tuple[Record, dict[str, Any]]], free: set[str]
) -> tuple[dict[int, dict[str, Any]], list[str]]:
    """:func:`select` among records with their fields, where runs may differ in the `free` ones."""
    found: dict[str, dict[int, dict[Any, Record]]] = {}
    settings: dict[tuple, str] = {}
    missing = []
    for name, selection in test.runs.items():
        of_run: dict[int, dict[Any, Record]] = defaultdict(dict)
        groups: dict[Any, dict[tuple, dict]] = defaultdict(dict)
        for record, body in known:
            if not matches(selection, body):
                continue
            value = starred(selection, body)
            groups[value].setdefault(_key(body, ALIKE), body)
            if of_run[body["seed"]].setdefault(value, record).id != record.id:
                groups[value].setdefault(_key(body, ()), body)
            settings[_key(body, free)] = name
        for group in groups.values():
            _one_only(f"run {name!r}", list(group.values()))
        if not of_run:
            missing.append(f"{name} ({describe(selection)})")
        found[name] = dict(of_run)
    if len(settings) > 1:
        differing = sorted({a for key in settings for other in settings for a, b in set(key) - set(other)})
        raise InputError(
            f"the runs differ in {', '.join(differing)} beside what the selections name "
            f"(allowed: the same settings; name the field in the selection, or list it under differ)"
        )
    if missing:
        return {}, missing
    values = {name: set().union(*(set(of_seed) for of_seed in found[name].values())) for name in found}
    # A trend over the values, for which an expression asks by field(), needs two of them.
    least = {name: max(test.values, 2 if f"field({name})" in test.estimate else 1) for name in values}
    few = [name for name, of_run in values.items() if of_run != {None} and len(of_run) < least[name]]
    if few:
        return {}, [f"{name} with {least[name]} values or more ({describe(test.runs[name])})" for name in few]
    complete = set.intersection(*({s for s, own in found[n].items() if set(own) == values[n]} for n in found))
    chosen: dict[int, dict[str, Any]] = {}
    for seed in sorted(complete):
        chosen[seed] = {
            name: Family(sorted(of_run[seed].items())) if values[name] != {None} else of_run[seed][None]
            for name, of_run in found.items()
        }
    if not chosen:
        return {}, ["one seed with all runs of the test"]
    return chosen, []


def _differing(selections: Iterable[Selection]) -> set[str]:
    """Fields that the selections set differently, or over which one of them is a family."""
    selections = [{"methods": []} | selection for selection in selections]
    names = {name for selection in selections for name in selection}
    return {
        name
        for name in names
        if len({repr(selection.get(name, "free")) for selection in selections}) > 1
        or repr(VARY) in repr(selections[0].get(name))
    }


def _one_only(what: str, bodies: list[dict[str, Any]]) -> None:
    if len(bodies) > 1:
        names = [name for name in bodies[0] if name != "seed" and len({repr(body[name]) for body in bodies}) > 1]
        given = "; ".join(f"{n}: {' or '.join(sorted({str(b[n]) for b in bodies}))}" for n in names)
        raise InputError(f"{what} fits runs that differ in {given} (allowed: one run a seed; name the field)")


def describe(selection: Selection) -> str:
    """A selection in words."""
    words = []
    for key, value in selection.items():
        parts = value if isinstance(value, list) else [value]
        shown = [brief(named(part)) if key in PARTS else str(part) for part in parts]
        words.append(f"{key} {' + '.join(shown) or 'none'}")
    return ", ".join(words)


# ---------------------------------------------------------------- evaluation


def judge(test: Test, e: Estimate) -> Verdict:
    """The verdict on an estimate."""
    if e.n < 2:
        return Verdict.INCONCLUSIVE
    if test.reproduced.holds(e.low, e.high):
        return Verdict.REPRODUCED
    if test.partly and test.partly.holds(e.low, e.high):
        return Verdict.PARTLY
    return Verdict.NOT_REPRODUCED if test.reproduced.misses(e.low, e.high) else Verdict.INCONCLUSIVE


def together(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on a claim from those of its tests."""
    verdicts = list(verdicts)
    if len(set(verdicts)) == 1:
        return verdicts[0]
    for one in (Verdict.REPRODUCED, Verdict.PARTLY):
        if one in verdicts:
            return Verdict.PARTLY
    return Verdict.NOT_REPRODUCED if Verdict.NOT_REPRODUCED in verdicts else Verdict.INCONCLUSIVE


def outcome(test: Test, records: Iterable[Record], dataset: str | None = None) -> Outcome:
    """What the records give for one test."""
    if test.runs:
        chosen, missing = select(test, records, dataset)
        if not chosen:
            return Outcome(test, Verdict.NOT_RUN, missing=tuple(missing))
    else:
        chosen = {seed: {"seed": seed} for seed in range(CALCULATIONS)}
    try:
        values = tuple(expressions.evaluate(test.estimate, runs) for runs in chosen.values())
    except expressions.NotMeasured as error:
        return Outcome(test, Verdict.NOT_RUN, missing=(str(error),))
    used = {
        record.id: record for runs in chosen.values() for run in runs.values()
        for record in (run.values() if isinstance(run, Family) else [run] if isinstance(run, Record) else ())
    }  # fmt: skip
    e = estimate(values)
    return Outcome(test, judge(test, e), e, tuple(chosen), values, tuple(used.values()))


def evaluate(claim: Claim, records: Iterable[Record], edition: str | None = None) -> Result:
    """What some runs say to a claim; raises :class:`InputError` that names the claim where they fit no test rightly."""
    if claim.not_testable:
        return Result(claim, edition, Verdict.NOT_TESTABLE)
    records, outcomes = list(records), []
    for test in claim.tests:
        try:
            outcomes.append(outcome(test, records, edition))  # an edition has the name of its data set
        except InputError as error:
            raise InputError(f"claim {claim.key}, {test.name}: {error}") from None
    trained = [o.verdict for o in outcomes if o.test.runs]
    # A calculation alone says nothing of a claim that also has to be trained.
    only = set(trained) == {Verdict.NOT_RUN}
    return Result(claim, edition, Verdict.NOT_RUN if only else together(o.verdict for o in outcomes), tuple(outcomes))


def evaluate_all(store: Store | None = None, folder: Path | None = None) -> dict[str, Standing]:
    """Every claim of the ledger in `folder` (default: this checkout's) by key, with the result of each edition."""
    from typing import get_args

    store = store or Store()
    standings, kept = {}, {}
    for source in load(folder):
        for claim in source.claims:
            if not any(test.runs for test in claim.tests):
                standings[claim.key] = Standing(claim, source.key, {CALCULATION: evaluate(claim, (), CALCULATION)})
                continue
            results = {}
            for edition in get_args(Edition):
                key = claim.chapter, edition
                if key not in kept:
                    kept[key] = store.of_chapter(*key)
                results[edition] = evaluate(claim, kept[key], edition)
            standings[claim.key] = Standing(claim, source.key, results)
    return standings
