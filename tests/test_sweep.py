"""Sweeps: what is stored is not trained again; what was interrupted, even by kill -9, ends as if it had not been."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import nbformat
import numpy as np
import psutil
import pytest
import torch
from small_chapter import write_chapter

from fedlib import federation, local, progress, sweep, workers
from fedlib.experiment import Experiment
from fedlib.measures.weight_divergence import WeightDivergence
from fedlib.models import Linear
from fedlib.partitions import Dirichlet, QuantitySkew
from fedlib.records import StorageError, Store
from fedlib.spec import InputError

TINY = Experiment(train_images=100, clients=2, rounds=2, batch_size=25, model=Linear())


def test_records_come_in_order_once_each(checkout):
    grid = [TINY.but(seed=s) for s in (1, 0, 1)]
    assert [r.experiment.seed for r in sweep.sweep(grid, processes=1)] == [1, 0]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_run_that_diverges_is_named(checkout, processes):
    bad = TINY.but(lr=1e38, seed=3)
    with pytest.raises(local.Diverged, match=rf"run {bad.id} \(digits, Iid, seed 3\), round 1, client \d: the loss is"):
        sweep.sweep([bad, TINY], processes=processes)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"clients": 101}, "101.*100"),
        ({"batch_size": 51}, "batch_size = 51"),
        ({"dataset": "digitz"}, "unknown data set 'digitz'; did you mean 'digits'"),
        ({"clients": 100, "batch_size": 1, "partition": Dirichlet(alpha=0.1, min_size=9)}, "9"),
    ],
)
def test_nothing_is_trained_when_one_run_cannot_be(checkout, fields, message):
    with pytest.raises(InputError, match=message):
        sweep.sweep([TINY, TINY.but(**fields)], processes=1)
    assert Store().get(TINY) is None


def test_nothing_is_trained_when_the_run_compared_with_cannot_be(checkout):
    """A batch of all that the largest client has, times the clients, is more than all clients have."""
    unequal = TINY.but(partition=QuantitySkew(ratio=20.0), measures=(WeightDivergence(),))
    largest = int(federation.Setting(unequal).sizes.max())
    compared = TINY.but(measures=(WeightDivergence(),))
    with pytest.raises(InputError, match="WeightDivergence compares with another run, which cannot be: batch_size"):
        sweep.sweep([compared, unequal.but(batch_size=largest)], processes=1)
    assert not list(Store().cache.rglob("*.pt")) and Store().get(compared) is None


def test_over_seeds_gives_what_chapters_ask_for(checkout):
    one, other = TINY, TINY.but(rounds=5)
    runs = sweep.over_seeds({"one": one, "other": other}, 1, {"other": 2})
    assert list(runs) == ["one", "other"]
    assert [r.experiment for r in runs.all()] == [one, *(other.but(seed=s) for s in range(2))]
    assert [r.id for r in runs.of(["other", "one"])] == [r.id for r in [*runs["other"], *runs["one"]]]

    accuracies = np.array([r.values("test_accuracy") for r in runs["other"]])  # (2 seeds, 5 rounds)
    assert runs.last("other", "test_accuracy") == pytest.approx(accuracies[:, 4])
    assert runs.final("other") == pytest.approx(accuracies[:, 2:].mean(1))
    assert runs.halfway("other") == pytest.approx(accuracies[:, :3].mean(1)), "three values of five"
    rounds, values = runs.curve("other", "test_accuracy")
    assert rounds.tolist() == [1, 2, 3, 4, 5] and values.tolist() == accuracies.tolist()
    assert runs.final("one") == pytest.approx([runs["one"][0].values("test_accuracy").mean()]), "there are but two"
    assert runs.final("one", "train_loss").tolist() != runs.final("one").tolist()
    sent = (28 * 28 * 10 + 10) * 4  # weights and biases of ten classes, 32 bits each
    assert runs.traffic("other").tolist() == [2 * 2 * 5 * sent] * 2, "both ways, two clients, five rounds"

    more = runs | sweep.over_seeds({"third": one}, 2)
    assert isinstance(more, sweep.Runs) and len(more["third"]) == 2 and "third" not in runs


def test_a_setting_has_at_least_the_seeds_of_all_and_stands_there(checkout):
    runs = sweep.over_seeds({"one": TINY}, 2, {"one": 1})
    assert [r.experiment.seed for r in runs["one"]] == [0, 1]
    with pytest.raises(InputError, match="unknown setting 'tow'; did you mean 'two'.*allowed: two"):
        sweep.over_seeds({"two": TINY}, 1, {"tow": 2})


def test_alpha_must_be_positive():
    for alpha in (0.0, -1.0):
        with pytest.raises(InputError, match=f"alpha = {alpha}"):
            Dirichlet(alpha=alpha)


def test_a_sweep_says_which_records_it_used(checkout, monkeypatch):
    (first,) = sweep.sweep([TINY], processes=1)
    path = checkout / "progress"
    monkeypatch.setenv(progress.VARIABLE, str(path))
    sweep.sweep([TINY], processes=1)
    tally = progress.Tally(path)
    tally.read()
    assert tally.used == {TINY.id: (str(first.path), progress.file_digest(first.path))}
    assert not tally.planned


def test_a_full_disk_loses_nothing(checkout, monkeypatch):
    """The record cannot be written; what was trained until then is, and the next sweep goes on from it."""
    expected = sweep.obtain(TINY.but(rounds=6), Store(checkout / "x", checkout / "y"))
    monkeypatch.setattr(sweep, "SAVE_EVERY", 0)
    replace, played = os.replace, []

    def full(source, target):
        if str(target).endswith(".json"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StorageError, match="cannot write .*json: No space left on device; finished rounds are kept"):
        sweep.sweep([TINY.but(rounds=6)], processes=1)
    assert not list(checkout.glob(".fedlib/records/**/*.json*")), "neither a record nor a half of one"

    monkeypatch.setattr(os, "replace", replace)
    play = federation.play_round
    monkeypatch.setattr(federation, "play_round", lambda run: (played.append(run.round + 1), play(run)))
    (record,) = sweep.sweep([TINY.but(rounds=6)], processes=1)
    assert played == [6]
    assert record.series == expected.series


def test_a_damaged_record_stops_the_sweep_before_training(checkout):
    (record,) = sweep.sweep([TINY], processes=1)
    record.path.write_bytes(record.path.read_bytes()[:-20])
    with pytest.raises(StorageError, match=f"{record.id}.json is damaged .*delete it"):
        sweep.sweep([TINY.but(seed=1), TINY], processes=1)
    assert Store().get(TINY.but(seed=1)) is None


def test_no_permission_to_write(checkout):
    (checkout / ".fedlib").write_text("a file where the folder would be")
    with pytest.raises(StorageError, match="cannot .*.fedlib"):
        sweep.sweep([TINY], processes=1)


def test_the_number_of_workers(monkeypatch):
    monkeypatch.setenv(workers.VARIABLE, "3")
    assert workers.cores() == 3
    for bad in ("0", "-1", "two", "1.5", ""):
        monkeypatch.setenv(workers.VARIABLE, bad)
        with pytest.raises(InputError, match=f"FEDLIB_WORKERS = '{bad}'"):
            workers.cores()


def wait_for(condition, seconds=180):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {condition}"
        time.sleep(0.05)


ROUNDS = 2000
"""Long enough for three stored states (one every 2 s), short enough for a test."""


@pytest.mark.parametrize("chapters", ["one", "three"])
def test_interrupted_and_killed_chapters_go_on_and_end_the_same(checkout, chapters):
    """Ctrl-C, then kill -9, each in mid-sweep: kernels and workers end too, and the third start finishes."""
    alphas = {"one": {"small": [0.5, 5.0]}, "three": {"other": [5.0], "small": [0.5], "third": [0.05]}}[chapters]
    for name in alphas:  # of three, the last waits for one of the others to end
        write_chapter(checkout, name)
    editions = {name: {"digits": {"rounds": ROUNDS, "alphas": own}} for name, own in alphas.items()}
    (checkout / "notebooks" / "editions.yml").write_text(json.dumps(editions))
    command = [sys.executable, "-m", "fedlib", "run", "--all", "--jobs", "2"]
    runs = checkout / ".fedlib" / "runs"
    before = {}
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        stored = {path: path.stat().st_mtime_ns for path in runs.glob("*.pt")}
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

        def trained(process=process, stored=stored):
            assert process.poll() is None, f"it ended before it was interrupted: {process.stderr.read()}"
            return sum(path.stat().st_mtime_ns != stored.get(path) for path in runs.glob("*.pt")) == 2

        try:
            wait_for(trained)
            family = psutil.Process(process.pid).children(recursive=True)
            assert len(family) >= 4, "a kernel, a fork server and two workers; or two chapters and their kernels"
            process.send_signal(number)
            assert process.wait(timeout=60) == code
        finally:
            process.kill()
        alive = psutil.wait_procs(family, timeout=30)[1]
        assert not alive
        message = process.stderr.read()
        assert ("the same command goes on" in message) == (number == signal.SIGINT), message
        assert "Traceback" not in message
        assert not list(checkout.glob("book/chapters/*.ipynb"))
        states = {path: torch.load(path) for path in runs.glob("*.pt")}
        for path, state in before.items():
            assert states[path]["round"] > state["round"]
            # The time of training adds up only where it went on.
            assert states[path]["seconds"] >= state["seconds"] + sweep.SAVE_EVERY
        before = states

    subprocess.run(command, check=True, timeout=300)
    pages = [nbformat.read(checkout / f"book/chapters/{name}-digits.ipynb", 4) for name in alphas]
    assert not list(runs.glob("*.pt"))
    finished = list(Store().records())
    assert {record.id for record in finished} == {run for page in pages for run in page.metadata.fedlib.records}
    untouched = sweep.sweep([r.experiment for r in finished], Store(checkout / "x", checkout / "y"), processes=2)
    assert len(finished) == sum(map(len, alphas.values()))
    for resumed, uninterrupted in zip(finished, untouched, strict=True):
        assert resumed.rounds("train_loss").tolist() == list(range(1, ROUNDS + 1))
        assert resumed.series == uninterrupted.series
