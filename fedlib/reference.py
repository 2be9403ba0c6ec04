"""The reference of methods and their parts, made from their files: purpose, formula, fields, cost, who uses them."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from typing import Any

import nbformat

from fedlib import paths
from fedlib.experiment import Experiment
from fedlib.methods import Alike, Copy, DataSharing, FedAvg, Policy, published
from fedlib.models import CNN
from fedlib.partitions import Dirichlet
from fedlib.records import Record
from fedlib.schedules import Schedule
from fedlib.spec import InputError, Spec

BASE = Experiment(
    train_images=600, holdout=200, clients=5, per_round=4, rounds=2, batch_size=20, evaluate_every=2,
    model=CNN(channels=(4, 8), dense=(16,)), partition=Dirichlet(alpha=0.5),
)  # fmt: skip
"""The run on which a method's cost is measured. Costs are shown relative to FedAvg's, where they depend on the
experiment only through what a method does."""


@dataclass(frozen=True)
class Entry:
    """What the reference says of one method or part."""

    name: str
    purpose: str
    formula: str
    """Docstring of its file."""
    fields: list[dict[str, str]]
    """name, default, meaning."""
    file: str
    chapters: list[str]


def parts() -> dict[str, type[Spec]]:
    """What methods and experiments take as parts, by name: what is shared in place of images, who gets how much of it,
    and schedules of the learning rate."""
    return {
        name: part for family in (Copy, Policy, Schedule) for name, part in sorted(family.family.items())
        if part.__module__.startswith(__package__)
    }  # fmt: skip


def purpose(part: type[Spec]) -> str:
    """What it is for, in one line."""
    return inspect.getdoc(part).splitlines()[0]


def entry(method: type[Spec]) -> Entry:
    """The reference of one method or part."""
    return Entry(
        name=method.__name__,
        purpose=purpose(method),
        formula=inspect.getdoc(sys.modules[method.__module__]),
        fields=[
            {"field": name, "default": default(field), "meaning": " ".join((field.description or "").split())}
            for name, field in method.model_fields.items()
        ],
        file=f"{method.__module__.replace('.', '/')}.py",
        chapters=chapters_using(method.__name__),
    )


def default(field: Any) -> str:
    """A field's default as one would write it."""
    if field.is_required():
        return "required"
    return repr(field.default) if isinstance(field.default, Spec) else str(field.default)


def chapters_using(name: str) -> list[str]:
    """The source chapters in which it is made."""
    found = []
    for path in sorted((paths.root() / "notebooks").glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        if any(re.search(rf"\b{name}\(", cell.source) for cell in cells if cell.cell_type == "code"):
            found.append(path.stem)
    return found


def examples() -> dict[str, Experiment | str]:
    """Per method the experiment that measures its cost, or why it has none of its own; and per part of shared data."""

    def made(part: type[Spec]) -> Spec:
        return part(**{key: field.examples[0] for key, field in part.model_fields.items() if field.examples})

    runs = {name: () if method is FedAvg else (made(method),) for name, method in published().items()}
    for name, part in parts().items():
        if issubclass(part, Copy):
            runs[f"DataSharing, {name}"] = (DataSharing(copies=(made(part),)),)
        elif issubclass(part, Policy) and part is not Alike:
            runs[f"DataSharing, {name}"] = (DataSharing(policy=made(part)),)
    found: dict[str, Experiment | str] = {}
    for name, methods in runs.items():
        found[name] = BASE.but(methods=methods)
        try:
            for method in methods:
                method.check(found[name])
        except InputError as error:
            found[name] = str(error)
    return found


def cost(record: Record, fedavg: Record) -> dict[str, str]:
    """A method's cost in the run's last round: what it sends and computes in units of FedAvg's, what clients keep."""

    def relative(name: str, round: int) -> str:
        return f"{record.at(name, round) / fedavg.at(name, round):.2f}"

    last = record.experiment.rounds
    kept = record.last("client_state_bytes") / (fedavg.last("bytes_down") / fedavg.experiment.cohort)
    return {
        "bytes up": relative("bytes_up", last),
        "bytes down": relative("bytes_down", last),
        "bytes down, first round": relative("bytes_down", 1),
        "gradients": relative("gradients", last),
        "client state": f"{kept / record.experiment.clients:.2f}",
    }
