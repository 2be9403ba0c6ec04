"""Each of the four numbers sees its kind of skew and no other."""

import numpy as np
import pytest

from fedlib import plots
from fedlib.experiment import Experiment
from fedlib.holdings import Profile, client_share, draw_counts, draw_images, profile, seen
from fedlib.partitions import ConceptDrift, FeatureSkew, Iid, QuantitySkew, Shards, TemporalOrder
from fedlib.spec import InputError

BASE = Experiment(train_images=1000, clients=10, rounds=4)


@pytest.fixture(scope="module")
def profiles():
    kinds = {
        "iid": Iid(), "labels": Shards(classes_per_client=1), "sizes": QuantitySkew(ratio=20),
        "rotated": FeatureSkew(kind="rotation"), "drift": ConceptDrift(fraction=0.5, from_round=3),
        "time": TemporalOrder(window=0.25, period=4),
    }  # fmt: skip
    return {name: profile(BASE.but(partition=kind)) for name, kind in kinds.items()}


@pytest.mark.parametrize(
    "field, high, low, sees",
    [
        ("emd", 1.7, 0.8, {"labels"}),
        ("emd_in_a_round", 1.2, 0.8, {"labels", "time"}),
        ("size_ratio", 10, 2, {"sizes"}),
        ("client_share", 0.05, 0.02, {"rotated", "drift"}),
    ],
)
def test_who_sees_what(profiles, field, high, low, sees):
    for name, numbers in profiles.items():
        value = getattr(numbers, field)
        assert value > high if name in sees else value < low, (name, value)


def test_one_class_each_is_the_largest_distance(profiles):
    assert profiles["labels"] == Profile(pytest.approx(1.8), pytest.approx(1.8), 1.0, 0.0)


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


def test_seen_follows_the_round():
    e = BASE.but(partition=TemporalOrder(window=0.1, period=10))
    first, second = seen(e, 1), seen(e, 2)
    assert first.sum() == second.sum() == 100
    assert (second @ np.arange(10) > first @ np.arange(10)).all(), "each client has gone on to later classes"


def test_area_is_the_number_of_samples():
    _, (axes,) = plots.new()
    draw_counts(axes, np.array([[10, 0], [5, 20]]))
    (circles,) = axes.collections
    assert circles.get_offsets().tolist() == [[0, 0], [1, 0], [1, 1]]
    assert circles.get_sizes() / circles.get_sizes().max() == pytest.approx([0.5, 0.25, 1.0])
    _, (axes,) = plots.new()
    draw_images(axes, [np.zeros((4, 4, 1), np.uint8), np.zeros((4, 4, 3), np.uint8)])
    assert [image.get_extent()[0] for image in axes.images] == [-0.45, 0.55]
