"""Replays catch what does not come from this code: a changed record, a changed formula, an older version."""

import json

import pytest
from typer.testing import CliRunner

from fedlib import records, replay, sweep
from fedlib.cli import app
from fedlib.experiment import NUMERICS, Experiment
from fedlib.measures import Drift, WeightDivergence
from fedlib.methods import FedProx
from fedlib.models import Linear
from fedlib.partitions import Dirichlet
from fedlib.records import Record, StorageError, Store, digest, parse

SMALL = Experiment(
    train_images=300, clients=3, rounds=3, batch_size=20, epochs=2, model=Linear(), partition=Dirichlet(alpha=0.5),
    methods=(FedProx(mu=0.01),), measures=(Drift(), WeightDivergence()),
)  # fmt: skip


@pytest.fixture
def store(checkout, monkeypatch):
    monkeypatch.setenv("FEDLIB_WORKERS", "1")  # in this process, where a test can change a formula
    return Store()


@pytest.fixture
def record(store):
    return sweep.obtain(SMALL, store)


def rewritten(record: Record, change) -> None:
    """Change a record's file as a forger would: with a digest that fits."""
    body = json.loads(record.path.read_text())
    body.pop("digest")
    change(body)
    record.path.write_text(json.dumps(body | {"digest": digest(body)}))


def verify(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["verify", *arguments])
    return result.exit_code, result.output + (result.stderr or "")


def test_a_true_record_matches(record):
    found = replay.replay(record)
    assert found.state is replay.State.MATCHES and found.rounds == 3
    code, output = verify()
    assert code == 0 and record.id in output and "matches" in output


def test_training_does_not_depend_on_what_is_measured(store, record):
    plain = sweep.obtain(SMALL.but(measures=(), evaluate_every=2), store)
    assert plain.id != record.id
    for name in records.TRACE:
        assert plain.series[name] == record.series[name]


def test_a_flipped_digit_is_caught_by_the_digest(record):
    text = record.path.read_text()
    place = text.index('"train_loss"') + text[text.index('"train_loss"') :].index("0.") + 5
    record.path.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])
    code, output = verify()
    assert code == 1 and str(record.path.name) in output and "was changed after it was written" in output


@pytest.mark.parametrize("series", ["train_loss", "weight_norm", "test_loss", "test_accuracy", "gradients", "bytes_up"])
@pytest.mark.parametrize("round", [1, 3])
def test_a_flipped_digit_with_a_fitting_digest_is_caught_by_the_replay(record, series, round):
    def flip(body):
        values = body["series"][series]["value"]
        # One digit, the fourth significant one; of an accuracy the second decimal, which is ten images of a thousand.
        digits = f"{values[round - 1]:.10g}"
        places = [i for i, c in enumerate(digits) if c.isdigit()]
        place = digits.index(".") + 2 if "accuracy" in series else places[min(4, len(places) - 1)]
        values[round - 1] = float(digits[:place] + str((int(digits[place]) + 5) % 10) + digits[place + 1 :])

    before = record.at(series, round)
    rewritten(record, flip)
    forged = parse(record.path.read_text(), record.path)
    found = replay.replay(forged)
    assert found.state is replay.State.DIFFERS
    (mismatch,) = found.mismatches
    assert (mismatch.series, mismatch.round) == (series, round)
    assert mismatch.stored == forged.at(series, round) and mismatch.replayed == pytest.approx(before, rel=1e-6)
    code, output = verify()
    assert code == 1 and f"not verified: {record.id}" in output
    assert repr(mismatch.stored) in output and repr(mismatch.replayed) in output


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_changed_formula_is_caught_and_the_record_named(store, monkeypatch, precision):
    """The factor of FedProx's term, mu/2, becomes mu, and nobody bumps the numerics version."""
    changed = sweep.obtain(SMALL.but(precision=precision, measures=()), store)
    other = sweep.obtain(SMALL.but(methods=(), measures=()), store)

    def correct(self, client, g):
        g.add_(client.w[: len(g)] - client.w_start[: len(g)], alpha=2 * self.mu)

    monkeypatch.setattr(FedProx, "correct", correct)
    code, output = verify("--rounds", "1")
    assert code == 1
    assert f"not verified: {changed.id}" in output and "train_loss of round 1: stored" in output
    assert f"{other.id} digits: matches" in output


def test_a_damaged_record_and_a_stale_one_are_named_and_no_pass(store, record):
    rewritten(record, lambda body: body["provenance"].update(numerics=NUMERICS - 1))
    code, output = verify()
    assert code == 1 and f"{record.id} digits: stale" in output
    record.path.write_text(record.path.read_text()[:100])
    code, output = verify()
    assert code == 1 and "damaged" in output and record.path.name in output


def test_a_data_set_that_is_not_there_is_counted_and_never_fetched(store, record, monkeypatch, tmp_path):
    monkeypatch.delenv("FEDLIB_DATA", raising=False)
    monkeypatch.setenv("FEDLIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("fedlib.datasets._download", lambda name: pytest.fail("downloaded"))
    e = SMALL.but(dataset="cifar10")
    absent = store.put(Record(e, record.series, record.provenance))
    code, output = verify()
    assert code == 1
    assert "2 matches, 1 no data, of 3 records" in output and f"not verified: {absent.id}" in output


def test_an_edition_has_the_data_sets_that_its_chapters_run(store, record):
    for dataset in ("cifar10", "cifar100"):
        store.put(Record(SMALL.but(dataset=dataset), record.series, record.provenance))
    own = [path.parent.name for path in replay.records_of(store, "digits", ())]
    assert own == ["digits"] * 2  # with the centralised twin that weight divergence needs
    assert [path.parent.name for path in replay.records_of(store, "cifar10", ())] == ["cifar10", "cifar100"]
    assert len(replay.records_of(store, None, ())) == 4


def test_other_data_under_the_same_name_are_no_match(record):
    rewritten(record, lambda body: body["provenance"].update(data="0" * 64))
    assert "fingerprint" in replay.replay(parse(record.path.read_text(), record.path)).reason


def test_the_sample_turns_with_the_commit(store):
    files = [store.path(SMALL.but(seed=seed)) for seed in range(40)]
    first, again, next_ = (replay.sample(files, 5, key) for key in ("1f3", "1f3", "9ab"))
    assert first == again and len(set(first)) == 5
    assert first != next_
    assert set().union(*(replay.sample(files, 5, str(commit)) for commit in range(60))) == set(files)


def test_a_sample_leaves_out_records_whose_data_are_not_here(store, record, monkeypatch):
    monkeypatch.setattr(replay.datasets, "is_local", lambda name: False)
    store.put(Record(SMALL.but(dataset="tinyimagenet20"), record.series, record.provenance))
    assert len(replay.sample(store.files(), 10, "1f3")) == len(store.files()) - 1
    code, output = verify("--edition", "cifar10", "--sample", "1")
    assert code == 2 and "no data set of these 1 records is here" in output


def test_only_the_named_records_are_replayed(store, record):
    other = sweep.obtain(SMALL.but(seed=1, measures=()), store)
    code, output = verify(other.id[:6], "--rounds", "1")
    assert code == 0 and record.id not in output and "1 round" in output
    code, output = verify("ffffffffffff")
    assert code == 2 and "unknown record" in output


@pytest.mark.parametrize("arguments, message", [
    (("--sample", "0"), "--sample 0"),
    (("--rounds", "-1"), "--rounds -1"),
    (("--edition", "cifar"), "did you mean 'cifar10'"),
])  # fmt: skip
def test_what_cannot_be_verified_is_refused(record, arguments, message):
    code, output = verify(*arguments)
    assert code == 2 and message in output


def test_tolerances_grow_and_end():
    assert replay.tolerance("fp32", 1) < replay.tolerance("bf16", 1) < replay.LIMIT
    assert replay.tolerance("fp32", 9) == pytest.approx(replay.tolerance("fp32", 8) * replay.GROWTH)


def test_a_missing_record_is_trained_again(store, record):
    record.path.unlink()
    with pytest.raises((FileNotFoundError, StorageError)):
        parse(record.path.read_text(), record.path)
    again = sweep.obtain(SMALL, store)
    assert again.series == record.series
