"""Records: whole or not there, true to their experiment, untouched."""

import json
import os
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedlib import records, sweep
from fedlib.experiment import NUMERICS, Experiment
from fedlib.models import Linear
from fedlib.records import Record, StorageError, Store

TINY = Experiment(train_images=100, clients=2, rounds=2, batch_size=25, model=Linear())
ORIGIN = records.provenance(TINY, "0" * 64, 1.0, 1, 1)

numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53)
series = st.dictionaries(
    st.text(min_size=1, max_size=20),
    st.lists(numbers, min_size=1, max_size=5).map(lambda v: {"round": list(range(1, len(v) + 1)), "value": v}),
    min_size=1,
)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "committed", tmp_path / "cache")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(series)
def test_a_record_survives_its_file(store, values):
    record = store.put(Record(TINY, values, ORIGIN))
    assert record.experiment == TINY and set(record.series) == set(values)
    for name, one in values.items():
        assert record.series[name]["value"] == pytest.approx(one["value"], rel=1e-6)


def test_the_trace_is_kept_to_full_precision(store):
    value = 0.1234567890123456
    record = store.put(Record(TINY, {n: {"round": [1], "value": [value]} for n in ("train_loss", "test_loss")}, ORIGIN))
    assert record.last("train_loss") == value
    assert record.last("test_loss") == 0.1234568


def test_any_changed_digit_is_noticed(store):
    path = store.put(Record(TINY, {"test_accuracy": {"round": [1], "value": [0.8125]}}, ORIGIN)).path
    text = path.read_text()
    for place, character in enumerate(text):
        if character.isdigit():
            path.write_text(text[:place] + str((int(character) + 1) % 10) + text[place + 1 :])
            with pytest.raises(StorageError, match=str(path)):
                store.get(TINY)


@pytest.mark.parametrize("length", [0, 1, 100, -1])
def test_a_truncated_record_is_named(store, length):
    path = store.put(Record(TINY, {"x": {"round": [1], "value": [1.0]}}, ORIGIN)).path
    path.write_text(path.read_text()[:length])
    with pytest.raises(StorageError, match="delete it to train it again"):
        store.get(TINY)


def test_a_failed_write_leaves_nothing(store, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError, match="No space left on device"):
        store.put(Record(TINY, {}, ORIGIN))
    assert store.get(TINY) is None
    assert not list(store.path(TINY).parent.iterdir())


def test_a_stale_record_of_the_cache_is_trained_again(store):
    store.put(Record(TINY, {"x": {"round": [1], "value": [1.0]}}, ORIGIN | {"numerics": NUMERICS - 1}))
    assert store.get(TINY) is None


def test_a_stale_committed_record_is_marked(store):
    e = TINY.but(dataset="mnist")
    assert store.put(Record(e, {}, ORIGIN | {"numerics": NUMERICS - 1})).stale
    assert store.get(e).stale


def test_reading_asks_for_what_is_there(store):
    record = Record(TINY, {"test_accuracy": {"round": [2, 4], "value": [0.5, 0.7]}}, ORIGIN)
    assert record.last("test_accuracy") == 0.7
    assert record.last("test_accuracy", 2) == pytest.approx(0.6)
    assert record.at("test_accuracy", 2) == 0.5
    with pytest.raises(ValueError, match="did you mean 'test_accuracy'"):
        record.values("test_acuracy")
    with pytest.raises(ValueError, match=r"no test_accuracy of round 3"):
        record.at("test_accuracy", 3)


def test_a_run_is_trained_once(store, monkeypatch):
    first = sweep.obtain(TINY, store)
    monkeypatch.setattr(sweep.federation, "play", None)
    assert sweep.obtain(TINY, store).series == first.series


def test_a_damaged_state_starts_afresh(store):
    store.cache.joinpath("runs").mkdir(parents=True)
    store.cache.joinpath("runs", f"{TINY.id}.pt").write_bytes(b"half")
    with pytest.warns(UserWarning, match=f"run {TINY.id} starts afresh"):
        record = sweep.obtain(TINY, store)
    assert record.rounds("train_loss").tolist() == [1, 2]


def test_provenance_is_complete(store):
    origin = sweep.obtain(TINY, store).provenance
    assert origin["numerics"] == NUMERICS and origin["seed"] == TINY.seed
    assert len(origin["data"]) == 64 and origin["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert origin["seconds"] >= 0 and origin["threads"] == 1
    assert json.loads(json.dumps(origin)) == origin
