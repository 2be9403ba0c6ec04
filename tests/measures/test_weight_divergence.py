"""Weight divergence: zero where it must be, the paper's formula elsewhere."""

import torch

from fedlib import federation, sweep
from fedlib.experiment import Experiment
from fedlib.measures.weight_divergence import WeightDivergence, centralised
from fedlib.models import CNN
from fedlib.partitions import Iid, Shards
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
