"""`fedlib diff`: what differs between two runs or two executions, and whether the results do."""

import json

import pytest
from typer.testing import CliRunner

from fedlib import compare
from fedlib.cli import app
from fedlib.experiment import Experiment
from fedlib.partitions import Dirichlet, Iid
from fedlib.records import Record, Store, provenance
from fedlib.spec import InputError


@pytest.fixture
def store(checkout):
    return Store()


def put(store, accuracy, **fields) -> Record:
    e = Experiment(rounds=2, **fields)
    series = {n: {"round": [1, 2], "value": [0.5, accuracy]} for n in ("train_loss", "weight_norm", "test_accuracy")}
    return store.put(Record(e, series, provenance(e, "0" * 64, 1.0, 1, 1)))


def diff(*arguments) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["diff", *map(str, arguments)])
    return result.exit_code, result.output + (result.stderr or "")


def test_two_records(store):
    slow = [put(store, 0.600 + 0.001 * seed, lr=0.01, seed=seed) for seed in range(3)]
    fast = [put(store, 0.800 + 0.001 * seed, lr=0.1, seed=seed) for seed in range(3)]
    found = compare.compare(slow[0], fast[0], store)
    assert ("experiment.lr", 0.01, 0.1) in found.settings
    assert found.series[0] == ("train_loss, round 2", 0.6, 0.8)
    (pair,) = found.results
    assert (pair.a.n, pair.b.n, pair.overlap) == (3, 3, False)
    code, output = diff(slow[0].id, fast[0].path)
    assert code == 0 and "experiment.lr" in output and "apart" in output


def test_a_record_and_itself_do_not_differ(store):
    one = put(store, 0.6)
    found = compare.compare(one, one, store)
    assert not found.settings and not found.series
    assert found.results[0].overlap is None, "one seed says nothing"


def execution(root, name, records, **parameters):
    path = root / f"{name}.ipynb"
    used = {r.id: {"file": str(r.path.relative_to(root)), "sha256": ""} for r in records}
    body = {"chapter": "small", "edition": "digits", "parameters": parameters, "records": used}
    path.write_text(json.dumps({"metadata": {"fedlib": body}, "cells": []}))
    return path


def test_two_executions(store, checkout):
    sides = []
    for rounds_lr, accuracies in ((0.01, (0.6, 0.9)), (0.02, (0.61, 0.7))):
        sides.append([
            put(store, accuracy + 0.01 * seed, lr=rounds_lr, seed=seed, partition=partition)
            for partition, accuracy in zip((Iid(), Dirichlet(alpha=0.1)), accuracies, strict=True) for seed in range(3)
        ])  # fmt: skip
    a, b = execution(checkout, "a", sides[0], lr=0.01), execution(checkout, "b", sides[1], lr=0.02)
    found = compare.compare(compare.find(str(a), store), compare.find(str(b), store), store)
    assert found.settings == [("parameter lr", 0.01, 0.02)]
    assert {pair.setting: pair.overlap for pair in found.results} == {
        "partition Iid": True, "partition Dirichlet(alpha=0.1)": False,
    }  # fmt: skip
    assert diff(a, b)[0] == 0


def test_what_cannot_be_compared_is_refused(store, checkout):
    one = put(store, 0.6)
    chapter = execution(checkout, "a", [one])
    with pytest.raises(InputError, match="two records, or two executed chapters"):
        compare.compare(one, compare.find(str(chapter), store), store)
    (checkout / "other.ipynb").write_text("{}")
    assert diff("other.ipynb", chapter)[0] == 2 == diff("abcdef", one.id)[0]
    one.path.unlink()
    code, output = diff(chapter, chapter)
    assert code == 1 and one.id in output
