"""Each of the four numbers sees its kind of skew and no other, in real runs."""

import numpy as np
import pytest

from fedlib import federation
from fedlib.experiment import Experiment
from fedlib.measures import Holdings
from fedlib.measures.emd import emd, mean_emd
from fedlib.measures.holdings import client_share
from fedlib.methods import AdaptiveSharing, DataSharing
from fedlib.models import CNN
from fedlib.partitions import ConceptDrift, Dirichlet, FeatureSkew, Iid, QuantitySkew, Shards, TemporalOrder
from fedlib.spec import InputError

BASE = Experiment(
    train_images=1000, clients=10, rounds=4, batch_size=100, evaluate_every=4, model=CNN(channels=(4,), dense=(8,)),
    measures=(Holdings(),),
)  # fmt: skip
PERIOD = 4


def series(experiment):
    run = federation.begin(experiment)
    for _ in federation.play(run):
        pass
    return run.series


@pytest.fixture(scope="module")
def runs():
    kinds = {
        "iid": Iid(), "labels": Shards(classes_per_client=1), "sizes": QuantitySkew(ratio=20),
        "rotated": FeatureSkew(kind="rotation"), "drift": ConceptDrift(fraction=0.5, from_round=3),
        "time": TemporalOrder(window=0.25, period=PERIOD),
    }  # fmt: skip
    return {name: series(BASE.but(partition=kind)) for name, kind in kinds.items()}


@pytest.mark.parametrize(
    "name, of, high, low, sees",
    [
        ("emd", np.mean, 1.7, 0.8, {"labels"}),
        ("emd_in_a_round", np.mean, 1.2, 0.8, {"labels", "time"}),
        ("size_ratio", np.mean, 10, 2, {"sizes"}),
        ("client_share", lambda values: values[-1], 0.05, 0.02, {"rotated", "drift"}),
    ],
)
def test_who_sees_what(runs, name, of, high, low, sees):
    for kind, one in runs.items():
        assert one[name]["round"] == [1, 2, 3, 4]
        value = of(one[name]["value"])
        assert value > high if kind in sees else value < low, (kind, value)


def test_one_class_each_is_the_largest_distance(runs):
    one = {name: values["value"][0] for name, values in runs["labels"].items()}
    assert one["emd"] == one["emd_in_a_round"] == pytest.approx(1.8)
    assert one["size_ratio"] == 1 and one["client_share"] == 0
    table = np.array(one["holdings"])
    assert (np.sort(table, 1)[:, -2:] == [0, 100]).all() and (table.sum(0) == 100).all()


def test_holdings_follow_the_round(runs):
    """With an order in time all clients go on to later classes, and have been through all of them after a period."""
    first, *_ = tables = np.array(runs["time"]["holdings"]["value"])
    held = federation.setting(BASE.but(partition=TemporalOrder(window=0.25, period=PERIOD)))
    assert tables.shape == (4, 10, 10) and (tables.sum((1, 2)) == 250).all()
    assert (np.diff(tables @ np.arange(10), axis=0) > 0).all()
    population = np.bincount(held.dataset.y_train[held.train]) / 1000
    assert tables.sum(0).sum(0) == pytest.approx(1000 * population)
    shares = first / first.sum(1, keepdims=True)
    by_hand = np.abs(shares - population).sum(1).mean()  # all clients have 25 samples
    assert runs["time"]["emd_in_a_round"]["value"][0] == pytest.approx(by_hand)
    # Within a round all clients hold the same: it is the population that they differ from.
    assert mean_emd(first) < by_hand / 2


def test_drift_changes_the_share_from_its_round_on(runs):
    before, after = np.split(np.array(runs["drift"]["client_share"]["value"]), 2)
    assert (np.abs(before) < 0.01).all() and (after > 0.05).all()
    before, after = np.array(runs["drift"]["holdings"]["value"])[[0, 2]]
    assert (after[:5] == before[:5, [1, 0, 3, 2, 5, 4, 7, 6, 9, 8]]).all() and (after[5:] == before[5:]).all()


def test_all_clients_are_there_in_rounds_with_a_few():
    e = BASE.but(partition=Dirichlet(alpha=0.3), per_round=2, rounds=3, measures=(Holdings(every=3),))
    found = series(e)
    s = federation.setting(e)
    expected = [np.bincount(s.dataset.y_train[shard], minlength=10).tolist() for shard in s.shards]
    assert found["holdings"] == {"round": [1, 3], "value": [expected] * 2}
    assert found["emd"]["value"] == found["emd_in_a_round"]["value"] == [mean_emd(expected)] * 2
    assert found["emd"]["value"][0] == pytest.approx(np.average(emd(expected), weights=s.sizes))
    assert found["size_ratio"]["value"][0] == s.sizes.max() / s.sizes.min() > 2


def test_data_that_a_method_adds_count():
    """Shared data bring every client nearer to the population; what the clients hold themselves stays."""
    one_class = BASE.but(partition=Shards(classes_per_client=1), rounds=1, holdout=200)
    alone, shared = (series(one_class.but(methods=m)) for m in ((), (DataSharing(beta=0.2, alpha=1.0),)))
    assert np.sum(shared["holdings"]["value"]) > np.sum(alone["holdings"]["value"]) == 1000
    assert np.array(shared["holdings"]["value"]).min() > 0
    assert shared["emd_in_a_round"]["value"][0] < 1 < alone["emd_in_a_round"]["value"][0]
    assert shared["emd"] == alone["emd"] and shared["size_ratio"] == alone["size_ratio"]


def test_client_share_is_the_share_of_variance_that_clients_explain():
    """Client means of variance 1 and noise of variance 3, on a scale of 20: the share is a quarter."""
    rng = np.random.default_rng(0)
    clients, n, pixels = 40, 50, 400
    means = rng.normal(0, 1, (clients, pixels))
    images = 128 + 20 * (np.repeat(means, n, 0) + rng.normal(0, np.sqrt(3), (clients * n, pixels)))
    owner, labels = np.repeat(np.arange(clients), n), np.tile([0, 1], clients * n // 2)
    found = client_share(images.reshape(-1, 20, 20, 1), labels, owner)
    assert found == pytest.approx(0.25, abs=0.01)
    assert client_share(images.reshape(-1, 20, 20, 1), labels, rng.permutation(owner)) == pytest.approx(0, abs=0.002)
    with pytest.raises(InputError, match="one each"):
        client_share(images.reshape(-1, 20, 20, 1), labels[1:], owner)
    with pytest.raises(InputError, match="only one of its class"):
        client_share(images[:2].reshape(-1, 20, 20, 1), np.array([0, 1]), np.array([0, 0]))


def test_it_cannot_tell_what_the_weights_decide():
    with pytest.raises(InputError, match="Holdings with AdaptiveSharing"):
        federation.check(BASE.but(holdout=200, methods=(AdaptiveSharing(beta=0.1),)))
