"""The reference of methods, made from their files: purpose, formula, fields, measured cost, and who uses them."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import dataclass
from typing import Any

import nbformat

from fedlib import paths
from fedlib.experiment import Experiment
from fedlib.methods import FedAvg, Method, published
from fedlib.models import CNN
from fedlib.partitions import Dirichlet
from fedlib.records import Record
from fedlib.spec import InputError, Spec

BASE = Experiment(
    train_images=600, holdout=200, clients=5, per_round=4, rounds=2, batch_size=20, evaluate_every=2,
    model=CNN(channels=(4, 8), dense=(16,)), partition=Dirichlet(alpha=0.5),
)  # fmt: skip
"""The run on which a method's cost is measured. Costs are shown relative to FedAvg's, where they depend on the
experiment only through what a method does."""


@dataclass(frozen=True)
class Entry:
    """What the reference says of one method."""

    name: str
    purpose: str
    formula: str
    """Docstring of the method's file."""
    fields: list[dict[str, str]]
    """name, default, meaning."""
    file: str
    chapters: list[str]


def entry(method: type[Method]) -> Entry:
    """The reference of one method class."""
    return Entry(
        name=method.__name__,
        purpose=inspect.getdoc(method).splitlines()[0],
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
    """The source chapters in which a method is made."""
    found = []
    for path in sorted((paths.root() / "notebooks").glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        if any(re.search(rf"\b{name}\(", cell.source) for cell in cells if cell.cell_type == "code"):
            found.append(path.stem)
    return found


def examples() -> dict[str, Experiment | str]:
    """Per method the experiment that measures its cost, or why it has none of its own."""
    found: dict[str, Experiment | str] = {}
    for name, method in published().items():
        needed = {key: field.examples[0] for key, field in method.model_fields.items() if field.examples}
        try:
            found[name] = BASE.but(methods=() if method is FedAvg else (method(**needed),))
            for part in found[name].methods:
                part.check(found[name])
        except InputError as error:
            found[name] = str(error)
    return found


def cost(record: Record, fedavg: Record) -> dict[str, str]:
    """A method's cost in the run's last round: what it sends and computes in units of FedAvg's, what clients keep."""

    def relative(name: str) -> str:
        return f"{record.last(name) / fedavg.last(name):.2f}"

    kept = record.last("client_state_bytes") / (fedavg.last("bytes_down") / fedavg.experiment.cohort)
    return {
        "bytes up": relative("bytes_up"),
        "bytes down": relative("bytes_down"),
        "gradients": relative("gradients"),
        "client state": f"{kept / record.experiment.clients:.2f}",
    }
