"""What ``data/claims/*.yml`` holds: sources, their claims, and the test of each claim.

One file a source. A test selects runs by the fields of their experiments and says what to compute from them::

    - key: W1
      statement: With one class per client, accuracy falls far below that of IID clients.
      article: 82 to 44 %
      paper: 80.83 to 43.85 % (Zhao et al. 2018, Table 3, B = 100)
      chapter: weight_divergence
      figure: accuracy-over-rounds
      tests:
        - name: fall of the final accuracy
          runs:
            iid: {partition: {name: FixedEMD, emd: 0}}
            one_class: {partition: {name: FixedEMD, emd: 1.8}}
          estimate: final(iid) - final(one_class)
          reproduced: {above: 0.25, below: 0.55}
          partly: {above: 0}
          because: the paper's 0.37, give or take half

A selection is matched against an experiment field by field, and what it does not mention is free, except `methods`:
without them it means FedAvg. A name alone stands for a specification with any other fields (``partition: Iid``). The
value ``vary`` makes a family over that field. Measures are those that must be there, among others. Of
runs that differ in their rounds or training images alone, the longest count that are complete
(:mod:`fedlib.claims.verdicts`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import Field, model_validator

from fedlib import paths
from fedlib.claims import expressions
from fedlib.experiment import Experiment
from fedlib.measures import Measure
from fedlib.methods import Method
from fedlib.models import Model
from fedlib.partitions import Partition
from fedlib.schedules import Schedule
from fedlib.spec import InputError, Spec, unknown

VARY = "vary"
"""In a selection: any value; the runs are then a family over it."""

PARTS: dict[str, type[Spec]] = {
    "partition": Partition, "schedule": Schedule, "model": Model, "methods": Method, "measures": Measure,
}  # fmt: skip
"""The fields of an experiment that hold specifications, and their families."""

Selection = dict[str, Any]


class Region(Spec):
    """An open interval in which an estimate can lie."""

    above: float | None = None
    """Lower end; None: unbounded."""
    below: float | None = None
    """Upper end; None: unbounded."""

    @model_validator(mode="after")
    def _not_empty(self) -> Region:
        if self.low >= self.high or (self.above is None and self.below is None):
            raise InputError(f"region above {self.above} and below {self.below} (allowed: one bound, or above < below)")
        return self

    @property
    def low(self) -> float:
        return float("-inf") if self.above is None else self.above

    @property
    def high(self) -> float:
        return float("inf") if self.below is None else self.below

    def holds(self, low: float, high: float) -> bool:
        """Whether the whole interval lies inside."""
        return self.low < low and high < self.high

    def misses(self, low: float, high: float) -> bool:
        """Whether the whole interval lies outside, on one side."""
        return high <= self.low or low >= self.high

    def __str__(self) -> str:
        if self.above is not None and self.below is not None:
            return f"{self.above:g} to {self.below:g}"
        return f"above {self.above:g}" if self.below is None else f"below {self.below:g}"


class Test(Spec):
    """One number per seed, and where it must lie."""

    __test__ = False  # not a test of pytest's

    name: str = Field(min_length=1)
    """What the number is, in words."""
    runs: dict[str, Selection] = {}
    """Which runs, by the name that they have in the estimate. Without runs the estimate is a calculation, in which
    ``seed`` goes from 0 to 4."""
    estimate: str
    """Expression that gives the number, see :mod:`fedlib.claims.expressions`."""
    reproduced: Region
    """Where it lies if the claim holds."""
    partly: Region | None = None
    """Where it lies if the claim's direction holds."""
    because: str = Field(min_length=1)
    """Why these regions."""
    differ: tuple[str, ...] = ()
    """Fields in which the selected runs may differ from one another beside those that the selections name."""
    values: int = Field(1, ge=1)
    """Fewest values of a ``vary`` for which the test says anything: 2 where the claim is of a range."""

    @model_validator(mode="after")
    def _consistent(self) -> Test:
        for name, selection in self.runs.items():
            if name in expressions.FUNCTIONS or name == "seed" or not name.isidentifier():
                raise InputError(f"run {name!r} (allowed: an identifier that is not a function's name)")
            try:
                check_selection(selection)
            except InputError as error:
                raise InputError(f"run {name}: {error}") from None
        for name in self.differ:
            if name not in Experiment.model_fields:
                raise unknown("field of Experiment", name, Experiment.model_fields)
        try:
            expressions.check(self.estimate, set(self.runs) or {"seed"})
        except InputError as error:
            raise InputError(f"estimate: {error}") from None
        if self.partly and not (self.partly.low <= self.reproduced.low and self.reproduced.high <= self.partly.high):
            raise InputError(
                f"partly {self.partly}, reproduced {self.reproduced} (allowed: the latter within the former)"
            )
        return self


class NotTestable(Spec):
    """Why no run here can test a claim."""

    reason: str = Field(min_length=1)
    needs: str = Field(min_length=1)
    """What it would take."""


class Claim(Spec):
    """One statement of a source, and its test."""

    key: str = Field(pattern="^[A-Z][0-9]+$")
    statement: str = Field(min_length=1)
    """In our own words."""
    article: str = Field(min_length=1)
    """The source document's own figure, or "qualitative"."""
    paper: str = ""
    """The underlying paper's table, where it says more or something else."""
    chapter: str = Field(min_length=1)
    """Name of the chapter's notebook."""
    figure: str = ""
    """Name of the figure in it, which is its anchor."""
    tests: tuple[Test, ...] = ()
    """All must hold for the claim to be reproduced."""
    not_testable: NotTestable | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Claim:
        if bool(self.tests) == (self.not_testable is not None):
            raise InputError(f"claim {self.key} (allowed: either tests, or not_testable with reason and needs)")
        return self


class Source(Spec):
    """A source document and its claims."""

    key: str = Field(pattern="^S[0-9]+$")
    document: str
    papers: tuple[str, ...] = ()
    """Keys of ``book/references.bib``."""
    claims: tuple[Claim, ...] = Field(min_length=1)


def check_selection(selection: Selection) -> None:
    """Raise InputError for a field, a specification or a parameter that does not exist, or a second ``vary``."""
    stars = 0
    for key, value in selection.items():
        if key not in Experiment.model_fields:
            raise unknown("field of Experiment", key, Experiment.model_fields)
        parts = value if isinstance(value, list) else [value]
        if key not in PARTS:
            stars += value == VARY
            continue
        for part in parts:
            stars += sum(item == VARY for item in named(part).values())
            _check_part(part, PARTS[key])
    if stars > 1:
        raise InputError(f"{stars} fields are {VARY!r} (allowed: one, over which the runs are a family)")


def _check_part(part: Any, family: type[Spec]) -> None:
    fields = named(part)
    if "name" not in fields:
        raise InputError(f"{part!r} has no name (allowed: a name of {', '.join(sorted(family.family))})")
    if fields["name"] not in family.family:
        raise unknown(family.__name__.lower(), str(fields["name"]), family.family)
    own = family.family[fields["name"]].model_fields
    for name, value in fields.items():
        if name == "name":
            continue
        if name not in own:
            raise unknown(f"parameter of {fields['name']}", name, own)
        inner = _family(own[name].annotation)
        if inner and value != VARY:
            for one in value if isinstance(value, list) else [value]:
                _check_part(one, inner)


def _family(annotation: Any) -> type[Spec] | None:
    """The family of specifications that a field holds, one or a tuple of them."""
    if isinstance(annotation, type) and issubclass(annotation, Spec) and annotation.family is not None:
        return annotation
    return next(filter(None, map(_family, get_args(annotation))), None)


def named(part: Any) -> dict[str, Any]:
    """A specification in a selection, of which the name alone may be given."""
    if isinstance(part, str):
        return {"name": part}
    if not isinstance(part, dict):
        raise InputError(f"{part!r} (allowed: a name, or name and parameters)")
    return part


def load(folder: Path | None = None) -> list[Source]:
    """The ledger of this checkout, or of a folder, checked; :class:`InputError` names file, claim and fault."""
    folder = paths.root() / "data" / "claims" if folder is None else folder
    sources = [_read(path) for path in sorted(folder.glob("*.yml"))]
    seen: dict[str, str] = {}
    for source in sources:
        for claim in source.claims:
            if claim.key in seen:
                raise InputError(f"claim {claim.key} stands in {seen[claim.key]} and in {source.key} (allowed: once)")
            seen[claim.key] = source.key
    return sources


def _read(path: Path) -> Source:
    where = path.name
    try:
        body = yaml.safe_load(path.read_text())
        if not isinstance(body, dict) or not isinstance(body.get("claims"), list):
            raise InputError("wrong shape (allowed: key, document, papers, claims)")
        # Piece by piece, so that a fault is told with the place where it is.
        claims = []
        for entry in body["claims"]:
            if not isinstance(entry, dict):
                raise InputError(f"claim {entry!r} (allowed: key, statement, article, chapter, tests, ...)")
            where = f"{path.name}, claim {entry.get('key')}"
            fields = entry | {"tests": tuple(Test.from_dict(test) for test in entry.get("tests", ()))}
            if entry.get("not_testable"):
                fields["not_testable"] = NotTestable.from_dict(entry["not_testable"])
            claims.append(Claim(**fields))
        where = path.name
        return Source(**body | {"claims": tuple(claims), "papers": tuple(body.get("papers", ()))})
    except yaml.YAMLError as error:
        raise InputError(f"{path.name} is not YAML: {error}") from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
