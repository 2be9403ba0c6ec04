"""The benchmarks measure what they say: the same work for all, whole processes, ratios within a repetition."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import page, workload
from benchmarks.__main__ import contenders, summary
from benchmarks.contenders import bare, idiomatic, ours
from benchmarks.turn import Contender, Failed, Turn, take
from fedlib import federation
from fedlib.models import CNN


@pytest.fixture
def images(tmp_path):
    workload.write(tmp_path / "images")
    return tmp_path / "images"


def test_all_contenders_train_networks_of_one_size():
    own = CNN(channels=(32, 64), dense=(128,)).build(workload.SHAPE, workload.CLASSES)
    sizes = [[p.numel() for p in net.parameters()] for net in (own, idiomatic.network())]
    assert sizes[0] == sizes[1]


def test_an_epoch_has_every_sample_once_with_and_without_loader(images):
    x, y = idiomatic.samples(*workload.read(images), 3)
    marks = torch.arange(len(y))
    for index in (False, True):
        parts = list(idiomatic.batches(x, marks, index))
        assert [len(rows) for _, rows in parts] == [32] * 15 + [20]
        assert torch.equal(torch.cat([rows for _, rows in parts]).sort()[0], marks)
        assert all(torch.equal(part, x[rows]) for part, rows in parts)


def test_an_empty_round_moves_nothing_and_a_full_one_does(images, monkeypatch):
    monkeypatch.setattr(federation.datasets, "load", federation.datasets.load)  # put back afterwards
    ours.prepare(images, 1)
    small = {"per_round": 1, "model": {"name": "CNN", "channels": [2], "dense": [2]}}
    for changes, moves in (({"methods": [{"name": "NoSteps"}]}, False), ({}, True)):
        run = federation.begin(ours.experiment(**small, **changes))
        start = run.w.clone()
        (run,) = federation.play(run, 1)
        assert bool((run.w != start).any()) == moves
        assert run.series["gradients"]["value"] == [workload.OWN * moves]
        assert "test_accuracy" not in run.series
    federation.setting.cache_clear()


def test_a_turn_measures_the_whole_process_tree(tmp_path, monkeypatch):
    folder = tmp_path / "benchmarks" / "contenders"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder / "__main__.py").write_text(
        "import json, subprocess, sys, time\n"
        "start = time.perf_counter()\n"
        "code = 'import time; x = bytearray(b\"1\" * (96 << 20)); t = time.process_time()\\n"
        "while time.process_time() < t + 0.5: pass'\n"
        "subprocess.run([sys.executable, '-c', code], check=True)\n"
        "ends = [start, time.perf_counter()]\n"
        "open(sys.argv[4], 'w').write(json.dumps(ends))\n"
        "time.sleep(0.3)\n"
    )
    monkeypatch.setattr("benchmarks.turn.ROOT", tmp_path)
    turn = take(Contender("child", "none", {}), Path(sys.executable), tmp_path, 1, memory=True)
    assert 96 < turn.peak_mib < 250
    assert 0.2 < turn.cpu_seconds_per_round < 1.5 and turn.seconds_per_round > 0.5


def test_a_contender_that_fails_says_why(tmp_path):
    with pytest.raises(Failed, match=r"(?s)absent failed.*No module named 'benchmarks.contenders.absent'"):
        take(Contender("absent", "absent", {}), Path(sys.executable), tmp_path, 1)


def test_the_bare_loop_shares_all_clients_of_a_round():
    for processes in (1, 2, 3, 4):
        shares = bare.shares(processes)
        assert sum(shares) == workload.PER_ROUND and max(shares) - min(shares) <= 1


def test_ratios_are_taken_within_a_repetition():
    """The machine becomes four times slower: no ratio may see it."""
    speeds = {"fedlib fp32": 8.0, "fedlib bf16": 16.0, "bare loop fp32": 10.0, "bare loop bf16": 16.0, "peer": 4.0,
              "peer bf16": 5.0}  # fmt: skip
    load = (1, 2, 4)
    work = workload.PER_ROUND * workload.OWN
    turns = {name: [Turn(work / (speed / slow), 1.0) for slow in load] for name, speed in speeds.items()}
    rows = summary(turns, dict.fromkeys(speeds, 100.0), ["peer", "peer bf16"])
    assert rows["fedlib fp32"]["to_fastest_peer"] == pytest.approx(2)
    assert rows["fedlib bf16"]["to_fastest_peer"] == pytest.approx(4)
    assert rows["fedlib fp32"]["to_bare_loop"] == pytest.approx(0.8)
    assert rows["fedlib bf16"]["to_bare_loop"] == pytest.approx(1)
    assert rows["fedlib fp32"]["samples_per_second"] == pytest.approx(4)


@pytest.mark.skipif(not page.LATEST.exists(), reason="not measured yet")
def test_the_page_shows_what_was_measured():
    body = json.loads(page.LATEST.read_text())
    assert page.table(body["contenders"]) in page.PAGE.read_text()
    assert set(body["contenders"]) == {c.name for c in contenders(body["cores"]) if "empty" not in c.name}
    assert f"{body['overhead']['share']['fp32']:.1%} of a round in fp32" in page.PAGE.read_text()
    assert page.to_limit(body["to_limit"]) in page.PAGE.read_text()


def test_cohorts_are_drawn_without_replacement():
    drawn = list(workload.cohorts(50))
    assert all(len(set(cohort)) == workload.PER_ROUND for cohort in drawn)
    assert len(np.unique(np.concatenate(drawn))) == workload.CLIENTS
