"""`fedlib show`: the signs on traces made by hand, a real run finished and under way, the page of one file."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from fedlib import federation, sweep, watch, watch_page
from fedlib.cli import app
from fedlib.experiment import NUMERICS, Experiment
from fedlib.measures import ClientTrace, Drift
from fedlib.measures.client_trace import SKETCH, Sketches, cosine
from fedlib.models import Linear
from fedlib.partitions import FeatureSkew, Shards
from fedlib.records import Store
from fedlib.spec import InputError
from fedlib.watch import Kind, Trace, Watched

EVERYTHING = [1.0] * 4
"""What an IID client of four classes holds, in parts."""


def series(clients, after, rounds=3):
    """Series of a trace that is the same in every round: per client n, parts held by class, accuracy by class."""
    row = {
        "client": list(range(len(clients))), "n": [n for n, _, _ in clients],
        "held": [[int(n * part / sum(held)) for part in held] for n, held, _ in clients],
        "accuracy_per_class": [list(accuracy) for _, _, accuracy in clients],
    }  # fmt: skip
    row |= {name: [1.0] * len(clients) for name in ("loss", "update_norm", "distance", "cosine")}
    numbers = list(range(1, rounds + 1))
    return {
        "client_trace": {"round": numbers, "value": [row] * rounds},
        "client_trace_global": {"round": numbers, "value": [list(after)] * rounds},
    }


def found(clients, after, rounds=3):
    return [(s.kind, s.client) for s in watch.signs(Trace.of(series(clients, after, rounds)))]


def test_healthy_clients_show_nothing():
    assert found([(100, EVERYTHING, [0.8, 0.9, 0.7, 0.8])] * 5, [0.8, 0.9, 0.7, 0.8]) == []


def test_drift_is_what_local_training_unlearns_of_others():
    clients = [(100, [1, 1, 0, 0], [0.9, 0.9, 0.1, 0.3]), (100, [0, 0, 1, 1], [0.8, 0.8, 0.9, 0.9])]
    after = [0.9, 0.9, 0.9, 0.9]
    assert found(clients, after) == [(Kind.DRIFT, 0)]
    # The client lacks a quarter of each of two classes, on which it is .8 and .6 worse.
    assert Trace.of(series(clients, after)).drift[0] == pytest.approx([0.25 * 0.8 + 0.25 * 0.6, 0.25 * 0.2])


def test_a_client_that_is_bad_at_everything_does_not_drift():
    """Too large a rate makes IID clients worse than their average; that is no pull towards data of their own."""
    assert found([(100, EVERYTHING, [0.3] * 4), (100, EVERYTHING, [0.4] * 4)], [0.8] * 4) == []


@pytest.mark.parametrize("after, signs", [(0.75, []), (0.6, [(Kind.FORGETTING, 0), (Kind.FORGETTING, 1)])])
def test_forgetting_is_what_averaging_takes_of_own_classes(after, signs):
    """Each client has a quarter of all more than the cohort, of each of two classes."""
    clients = [(100, [1, 1, 0, 0], [0.9] * 2 + [after] * 2), (100, [0, 0, 1, 1], [after] * 2 + [0.9] * 2)]
    assert found(clients, [after] * 4) == signs
    assert Trace.of(series(clients, [after] * 4)).forgetting == pytest.approx(0.5 * (0.9 - after))


def test_an_average_that_is_bad_at_everything_is_no_forgetting():
    assert found([(100, EVERYTHING, [0.9] * 4), (50, EVERYTHING, [0.8] * 4)], [0.4] * 4) == []


def test_forgetting_that_is_over_is_no_sign():
    early = series([(100, [1, 1, 0, 0], [0.9] * 4), (100, [0, 0, 1, 1], [0.9] * 4)], [0.3] * 4, rounds=9)
    early["client_trace_global"]["value"] = [[0.3] * 4] * 6 + [[0.9] * 4] * 3
    trace = Trace.of(early)
    assert trace.forgetting[0, 0] == pytest.approx(0.3) and watch.signs(trace) == []


@pytest.mark.parametrize(
    "small, of_its_class, signs",
    [
        (20, 0.5, [(Kind.STARVATION, 2)]),  # hardly heard and badly served
        (20, 0.9, []),  # hardly heard, but well served: quantity skew alone
        (100, 0.5, []),  # badly served for another reason than its size
    ],
)
def test_starvation_takes_a_small_share_and_bad_service(small, of_its_class, signs):
    after = [0.9, 0.9, 0.9, of_its_class]
    clients = [(100, [1, 1, 1, 0], after)] * 2 + [(small, [0, 0, 0, 1], after)]
    assert found(clients, after) == signs


def test_a_client_that_was_seen_too_seldom_is_not_judged():
    clients = [(100, [1, 1, 0, 0], [0.5, 0.5, 0, 0]), (100, [0, 0, 1, 1], [0, 0, 0.5, 0.5])]
    assert found(clients, [0.5] * 4, rounds=2) == [] and len(found(clients, [0.5] * 4, rounds=3)) == 2
    words = watch.summary(Watched(Experiment(), series(clients, [0.5] * 4, rounds=2), 2))[1]
    assert words == "No signs can be told: no client has been measured in 3 rounds yet."


def test_a_class_without_test_images_counts_nothing():
    clients = [(100, [1, 1, 0, 1], [0.9, 0.9, 0.9, None]), (100, EVERYTHING, [0.9, 0.9, 0.9, None])]
    trace = Trace.of(series(clients, [0.9, 0.9, 0.9, None]))
    assert np.isfinite(trace.drift).all() and trace.own_local == pytest.approx(0.9) and watch.signs(trace) == []


def test_clients_that_see_changed_images_are_not_judged():
    clients = [(100, [1, 1, 0, 0], [0.9, 0.9, 0, 0])] * 2
    seen = Watched(Experiment(partition=FeatureSkew(kind="rotation")), series(clients, [0.5] * 4), 3)
    assert watch.summary(seen)[0] == [] and "with FeatureSkew clients see their data changed" in watch.summary(seen)[1]


ACCURACIES = st.lists(st.floats(0, 1), min_size=4, max_size=4)
CLIENT = st.tuples(st.integers(4, 200), st.lists(st.integers(1, 5), min_size=4, max_size=4), ACCURACIES)


@given(st.lists(CLIENT, min_size=2, max_size=5), ACCURACIES, st.permutations(range(4)))
def test_signs_do_not_depend_on_the_order_of_the_classes(clients, after, order):
    clients = [(n, [n * part for part in held], accuracy) for n, held, accuracy in clients]
    turned = [(n, [held[c] for c in order], [accuracy[c] for c in order]) for n, held, accuracy in clients]
    one, other = Trace.of(series(clients, after)), Trace.of(series(turned, [after[c] for c in order]))
    for name in ("drift", "forgetting", "behind"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), abs=1e-9)
    assert (np.abs(one.drift) <= 1).all() and (np.abs(one.forgetting) <= 1).all()
    assert np.average(one.behind[0], weights=one.n[0]) == pytest.approx(0, abs=1e-9)


def test_sparkline():
    assert watch.sparkline([0, 1, None, 7]) == "▁▂ █"
    assert watch.sparkline([3, 3]) == "▁▁" and watch.sparkline([]) == ""
    assert len(watch.sparkline(range(1000), 30)) == 30


# ---------------------------------------------------------------- the measure


def test_cosines_of_sketches():
    torch.manual_seed(0)
    a, b = torch.randn(2, 3 * SKETCH)
    b = a + 2 * b
    sketches = Sketches(len(a), torch.Generator().manual_seed(1))
    assert sketches.of(a) + sketches.of(b) == pytest.approx(sketches.of(a + b), abs=1e-4)
    exact = cosine(a.numpy(), b.numpy())
    assert cosine(sketches.of(a), sketches.of(b)) == pytest.approx(exact, abs=0.02) and exact < 0.5
    small = Sketches(100, torch.Generator())
    assert (small.of(a) == a[:100].numpy()).all()
    assert np.isnan(cosine(np.zeros(3), np.ones(3)))


TINY = Experiment(
    train_images=300, clients=5, rounds=4, batch_size=20, model=Linear(), partition=Shards(classes_per_client=2),
    measures=(ClientTrace(), Drift()),
)  # fmt: skip


def test_the_trace_of_a_run_is_what_happened():
    start = federation.setting(TINY).w_init
    updates = [federation.train_client(TINY, k, 1, start, {}, {}, ()) for k in range(5)]
    mean = sum(u.n * u.delta for u in updates) / 300
    run = federation.begin(TINY)
    for _ in federation.play(run):
        pass
    trace = Trace.of(run.series)
    expected = [torch.nn.functional.cosine_similarity(u.delta, mean, dim=0) for u in updates]
    assert trace.cosine[0] == pytest.approx(np.array(expected), rel=1e-3)
    assert trace.held[0].sum(1) == pytest.approx(trace.n[0])
    # All test images were used, so the global model's accuracy by class is the run's own.
    assert trace.after == pytest.approx(np.array(run.series["test_accuracy_per_class"]["value"]), abs=1e-3)


# ---------------------------------------------------------------- the command


def show(*words):
    return CliRunner().invoke(app, ["show", *map(str, words)])


def test_a_record_without_a_trace_names_what_is_missing_and_the_command_that_makes_it(checkout):
    plain = sweep.obtain(TINY.but(measures=()), Store())
    result = show(plain.id[:8])
    assert result.exit_code == 0 and "test_accuracy" in result.stdout and "finished, 4 rounds" in result.stdout
    assert "Not measured in this run" in result.stdout and f"fedlib show {plain.id} --trace" in result.stdout
    again = show(plain.id, "--trace")
    assert again.exit_code == 0 and "drift at" in again.stdout and "Not measured" not in again.stdout
    traced = Store().get(watch.with_trace(plain.experiment))
    assert traced.series["train_loss"] == plain.series["train_loss"]
    assert watch.with_trace(traced.experiment) == traced.experiment
    assert show(traced.path).stdout == show(traced.id).stdout


def test_what_is_no_run_is_refused(checkout):
    result = show("abc")
    assert result.exit_code == 2 and "unknown record 'abc'" in result.stderr
    assert show("--live").exit_code == 2
    assert "no run is under way" in show().stdout


def test_the_page_is_one_file_that_asks_for_nothing(checkout):
    record = sweep.obtain(TINY, Store())
    result = show(record.id, "--html", "run.html")
    assert result.exit_code == 0
    page = (checkout / "run.html").read_text()
    asked = re.findall(r'(?:src|href)="([^"]*)"|url\(([^)]*)\)', page)
    assert asked and all(address.startswith(("data:", "#")) for pair in asked for address in pair if address)
    assert "@import" not in page and "<script" not in page
    drawings = re.findall(r"<svg[^>]*>", page)
    assert len(drawings) == 6 and all(re.search(r'role="img" aria-label="[^"]{30,}"', one) for one in drawings)
    assert "prefers-color-scheme: dark" in page and "currentColor" in page and watch_page.plots.INK not in page
    drifting = [sign for sign in watch.signs(Trace.of(record.series)) if sign.kind is Kind.DRIFT]
    assert drifting and len(re.findall("drift</td>", page)) == len(drifting)


def state(run):
    return run.state | {"seconds": 1.0, "numerics": NUMERICS}


def test_a_run_is_followed_until_it_ends(checkout):
    store = Store()
    run = federation.begin(TINY)
    rounds = federation.play(run)
    next(rounds)
    store.save_state(TINY, state(run))
    assert "round 1 of 4, not being trained now" in show().stdout
    with store.lock(TINY):
        assert "round 1 of 4, under way" in show(TINY.id).stdout
        told = []

        def pause(seconds):
            told.append(seconds)
            if run.round < 3:
                next(rounds)
                store.save_state(TINY, state(run))
            else:
                store.drop_state(TINY)
                store.put(watch.Record(TINY, run.series | {"train_loss": {"round": [4], "value": [0.5]}}, MADE))

        seen = [(now.round, now.record is not None) for now in watch.follow(watch.find(TINY.id, store), store, pause)]
    assert seen == [(1, False), (2, False), (3, False), (4, True)] and told == [watch.PERIOD] * 3


MADE = {"numerics": NUMERICS, "seconds": 1.0}


def test_a_killed_run_is_followed_no_longer_and_one_that_is_gone_ends(checkout):
    store = Store()
    run = federation.begin(TINY)
    next(federation.play(run))
    store.save_state(TINY, state(run))
    assert len(list(watch.follow(watch.find(TINY.id, store), store))) == 1, "nobody trains it"
    with store.lock(TINY):
        seen = watch.find(TINY.id, store)
        assert len(list(watch.follow(seen, store, lambda _: store.drop_state(TINY)))) == 1


def test_an_unfinished_file_is_left_to_the_run(checkout):
    store = Store()
    path = checkout / ".fedlib" / "runs" / f"{TINY.id}.pt"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half of a state")
    assert watch.under_way(store) == [] and path.exists()
    with pytest.raises(InputError, match="cannot be read, or is of another version"):
        watch.find(TINY.id, store)


def test_the_reader_can_leave(checkout, monkeypatch):
    record = sweep.obtain(TINY, Store())

    def interrupted(seen, store):
        yield seen
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "follow", interrupted)
    result = show(record.id, "--live", "--html", "run.html")
    assert result.exit_code == 0 and record.id in result.stdout and (checkout / "run.html").exists()
