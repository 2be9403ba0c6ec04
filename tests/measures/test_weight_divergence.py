"""Weight divergence: zero where it must be, the paper's formula elsewhere."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedlib import datasets, federation, sweep
from fedlib.experiment import Experiment
from fedlib.measures.weight_divergence import WeightDivergence, centralised
from fedlib.models import CNN
from fedlib.partitions import FixedEMD, Iid, Shards
from fedlib.records import Store

BASE = Experiment(
    train_images=400, clients=4, rounds=2, batch_size=20, lr=0.1, model=CNN(channels=(4,), dense=(8,)),
    partition=Shards(classes_per_client=3), measures=(WeightDivergence(),),
)  # fmt: skip


def test_the_twin_sees_all_data_in_as_many_steps():
    twin = centralised(BASE)
    assert (twin.clients, twin.batch_size, twin.partition, twin.measures) == (1, 80, Iid(), ())
    assert torch.equal(federation.Setting(twin).w_init, federation.Setting(BASE).w_init)
    s = federation.Setting(twin)
    assert -(-s.sizes[0] // 80) == -(-federation.Setting(BASE).sizes[0] // 20)


@pytest.mark.parametrize("changes", [
    {"per_round": 2, "partition": Iid()},
    {"clients": 10, "partition": FixedEMD(emd=1.0), "batch_size": 7},
])  # fmt: skip
def test_the_twin_takes_as_many_steps_on_the_same_images_where_clients_rest_or_images_are_left_out(
    changes, monkeypatch
):
    digits = datasets.load("digits")
    # One class has half of its images, so that FixedEMD leaves out a part of the others.
    kept = np.flatnonzero((digits.y_train != 3) | (np.arange(len(digits.y_train)) % 2 == 0))
    unequal = replace(digits, **{name: getattr(digits, name)[kept] for name in ("x_train", "y_train", "site_train")})
    monkeypatch.setattr(federation.datasets, "load", lambda name: unequal)
    e = BASE.but(**changes)
    own, twin = federation.Setting(e), federation.Setting(centralised(e))
    assert np.array_equal(twin.shards[0], np.sort(np.concatenate(own.shards)))
    steps = {-(-size // e.batch_size) for size in own.sizes}
    assert steps == {-(-twin.sizes[0] // twin.experiment.batch_size)}


def test_the_twin_of_itself_does_not_diverge(tmp_path):
    e = centralised(BASE).but(measures=(WeightDivergence(),))
    record = sweep.obtain(e, Store(tmp_path / "r", tmp_path / "c"))
    assert all(set(value.values()) == {0.0} for value in record.series["weight_divergence"]["value"])


def test_it_is_the_papers_formula(tmp_path):
    store = Store(tmp_path / "r", tmp_path / "c")
    record = sweep.obtain(BASE, store)
    w, twin = (sweep.trajectory(e, store)(2) for e in (BASE, centralised(BASE)))
    layout = federation.setting(BASE).space.layout
    for layer in layout.layers():
        names = [n for n in layout.places if n.removeprefix("body.").rsplit(".", 1)[0] == layer]
        a, b = (torch.cat([layout.view(v, n).flatten() for n in names]) for v in (w, twin))
        expected = float(torch.linalg.norm(a - b) / torch.linalg.norm(b))
        assert abs(record.last("weight_divergence")[layer] - expected) < 1e-5 * expected
    assert set(record.last("weight_divergence")) == {*layout.layers(), "all"}
