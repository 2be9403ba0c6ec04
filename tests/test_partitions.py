"""Partitions: disjoint, covering, no empty client, reproducible; and each as its paper defines it."""

import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedlib import partitions, seeds
from fedlib.measures.emd import emd, expected_emd, mean_emd
from fedlib.partitions import (
    BySite,
    ConceptDrift,
    Dirichlet,
    FeatureSkew,
    FixedEMD,
    Iid,
    Partition,
    Pooled,
    QuantitySkew,
    Resampled,
    Shards,
    TemporalOrder,
    client_test,
    counts,
)
from fedlib.spec import InputError

DIGITS = np.repeat(np.arange(10), 400)


def rng(seed=0):
    return seeds.numpy(seed, "partition")


def table(partition, labels=DIGITS, clients=10, seed=0, **more):
    return counts(labels, partition.split(labels, clients, rng(seed), **more), labels.max() + 1)


# -------------------------------------------------------------------------------------------------- property suite

PARTITIONS = st.one_of(
    st.just(Iid()),
    st.builds(Shards, classes_per_client=st.integers(1, 6)),
    st.builds(Dirichlet, alpha=st.floats(0.01, 100), balanced=st.booleans(), min_size=st.integers(1, 3)),
    st.builds(QuantitySkew, ratio=st.floats(1, 200)),
    st.builds(FeatureSkew, kind=st.sampled_from(["rotation", "colour", "noise"]), strength=st.floats(0, 1)),
    st.builds(ConceptDrift, fraction=st.floats(0, 1), swap=st.just(((0, 1),))),
    st.builds(TemporalOrder, window=st.floats(0.01, 1), period=st.integers(1, 30)),
    st.just(BySite()),
)


@st.composite
def labelled(draw):
    """Labels of 2 to 6 classes, each with a sample, in any order, and a site for each sample."""
    sizes = draw(st.lists(st.integers(1, 60), min_size=2, max_size=6))
    order = np.random.default_rng(draw(st.integers(0, 2**32))).permutation(sum(sizes))
    return np.repeat(np.arange(len(sizes)), sizes)[order], order % 2


@settings(max_examples=300, deadline=None)
@given(PARTITIONS, labelled(), st.integers(1, 30), st.integers(0, 2**20))
def test_disjoint_covering_no_empty_client_reproducible(partition, data, clients, seed):
    labels, sites = data
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitions, "TRIES", 50)  # impossible draws are given up soon; the bound has its own test
        try:
            shards = partition.split(labels, clients, rng(seed), sites)
        except InputError:
            assume(False)
    assert len(shards) == clients and all(len(s) for s in shards)
    assert all(s.dtype == np.int64 and (np.diff(s) > 0).all() for s in shards)
    assert np.array_equal(np.sort(np.concatenate(shards)), np.arange(len(labels)))
    again = partition.split(labels, clients, rng(seed), sites)
    assert all(np.array_equal(a, b) for a, b in zip(shards, again, strict=True))


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 8), st.integers(1, 3), st.integers(3, 60), st.floats(0, 1), st.integers(0, 2**20))
def test_fixed_emd_is_disjoint_and_of_equal_size(classes, groups, size, part, seed):
    labels = rng(seed).permutation(np.repeat(np.arange(classes), size))
    target = part * 2 * (1 - 1 / classes)
    shards = FixedEMD(emd=target).split(labels, groups * classes, rng(seed))
    together = np.concatenate(shards)
    n = size // groups
    assert {len(s) for s in shards} == {n} and len(np.unique(together)) == len(together)
    held = counts(labels, shards, classes)
    assert (held.sum(0) == n * groups).all()
    assert emd(held) == pytest.approx(np.full(len(shards), target), abs=2 * classes / n)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**20))
def test_a_different_seed_gives_a_different_partition(seed):
    for p in (Iid(), Shards(classes_per_client=2), Dirichlet(alpha=1.0), Dirichlet(alpha=1.0, balanced=True),
              FixedEMD(emd=1.08), QuantitySkew(ratio=10.0)):
        a, b = (p.split(DIGITS, 10, rng(s)) for s in (seed, seed + 1))
        assert any(not np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_every_partition_survives_json():
    tested = set()
    for p in (Iid(), Shards(classes_per_client=2), Dirichlet(alpha=0.1), FixedEMD(emd=1.8), QuantitySkew(ratio=100.0),
              FeatureSkew(kind="noise"), BySite(), ConceptDrift(fraction=0.5, swap=((0, 3),)),
              TemporalOrder(window=0.2, period=10), Resampled(size=50), Pooled(of=FixedEMD(emd=1.0), clients=10)):
        assert Partition.from_dict(json.loads(json.dumps(p.to_dict()))) == p
        tested.add(type(p))
    assert tested == set(Partition.family.values())


def test_pooled_is_what_the_clients_of_the_other_partition_hold():
    labels = DIGITS[np.flatnonzero((DIGITS != 3) | (np.arange(len(DIGITS)) % 2 == 0))]
    for other in (FixedEMD(emd=1.0), Dirichlet(alpha=0.5), Resampled(size=20)):
        (pooled,) = Pooled(of=other, clients=10).split(labels, 1, rng(4))
        assert np.array_equal(pooled, np.sort(np.concatenate(other.split(labels, 10, rng(4)))))
    with pytest.raises(InputError, match=r"clients = 2 with Pooled \(allowed: 1\)"):
        Pooled(of=Iid(), clients=10).split(labels, 2, rng())


def test_resampled_has_more_clients_than_samples_and_no_skew():
    labels = DIGITS[::40]
    shards = Resampled(size=40).split(labels, 1000, rng())
    assert {len(s) for s in shards} == {40} and all((np.diff(s) >= 0).all() for s in shards)
    used = np.bincount(np.concatenate(shards), minlength=len(labels))  # each 400 times, within 5 standard deviations
    assert len(used) == 100 and abs(used - 400).max() < 5 * np.sqrt(400)
    again = Resampled(size=40).split(labels, 1000, rng())
    assert all(np.array_equal(a, b) for a, b in zip(shards, again, strict=True))
    with pytest.raises(InputError, match="clients = 1000 with 100 samples"):
        Iid().split(labels, 1000, rng())


# ------------------------------------------------------------------------------------------------------- label skew


def test_iid_is_equal_in_size_and_near_zero_emd():
    held = table(Iid(), clients=7)
    assert set(held.sum(1)) == {571, 572}
    assert emd(held).max() < 0.25


@pytest.mark.parametrize("k, distance", [(1, 1.8), (2, 1.6), (5, 1.0), (10, 0.0)])
def test_shards_are_zhao_et_al_on_equal_classes(k, distance):
    held = table(Shards(classes_per_client=k))
    assert ((held > 0).sum(1) == k).all() and (held.sum(1) == 400).all()
    assert emd(held) == pytest.approx(np.full(10, distance))


@pytest.mark.parametrize("clients, k", [(10, 1), (10, 2), (13, 3), (100, 2), (5, 2), (3, 9)])
def test_shards_on_unequal_classes_have_exactly_k_classes(clients, k):
    labels = np.repeat(np.arange(10), [600, 700, 590, 610, 580, 540, 590, 620, 580, 600])
    held = table(Shards(classes_per_client=k), labels, clients)
    assert ((held > 0).sum(1) == k).all() and held.sum() == len(labels)


def test_shards_mix_the_classes():
    pairs = {tuple(np.flatnonzero(row)) for seed in range(30) for row in table(Shards(classes_per_client=2), seed=seed)}
    assert len(pairs) == 45  # of 10 classes, all pairs occur


def test_shards_that_cannot_be():
    with pytest.raises(InputError, match="classes_per_client = 11 with 10 classes .allowed: 1 to 10"):
        Shards(classes_per_client=11).split(DIGITS, 10, rng())
    with pytest.raises(InputError, match="leaves a class of 10 missing on every client"):
        Shards(classes_per_client=2).split(DIGITS, 4, rng())
    with pytest.raises(InputError, match="4 shards of different classes cannot be cut"):
        Shards(classes_per_client=2).split(np.array([0, 1, 1, 1, 1]), 2, rng())


def by_the_definition(labels, clients, alpha, generator, least=10):
    """The docstring's words, one class, one client and one cut at a time; sizes rounded down at each cut."""
    fair = len(labels) / clients
    while True:
        held = [[0] * (labels.max() + 1) for _ in range(clients)]
        for label, size in enumerate(np.bincount(labels).tolist()):
            drawn = generator.dirichlet([alpha] * clients).tolist()
            open_ = [share if sum(row) < fair else 0.0 for share, row in zip(drawn, held, strict=True)]
            upto, given_away = 0.0, 0
            for client, share in enumerate(open_):
                upto += share / sum(open_)
                end = size if client == clients - 1 else int(upto * size)
                held[client][label] = end - given_away
                given_away = end
        if min(map(sum, held)) >= least:
            return np.array(held)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 1.0, 100.0])
def test_unbalanced_dirichlet_is_the_definition(alpha):
    for seed in range(20):
        expected = by_the_definition(DIGITS, 10, alpha, rng(seed))
        assert np.abs(table(Dirichlet(alpha=alpha), seed=seed) - expected).max() <= 1  # sums in another order


def test_unbalanced_dirichlet_meets_its_minimum():
    for seed in range(20):
        assert table(Dirichlet(alpha=0.05, min_size=25), seed=seed).sum(1).min() >= 25


def test_dirichlet_that_cannot_meet_its_minimum_ends():
    with pytest.raises(InputError, match="none of 10000 draws with alpha = 0.1, n = 1000 samples and 100 clients .* "
                                         "minimum of 9"):
        Dirichlet(alpha=0.1, min_size=9).split(np.repeat(np.arange(10), 100), 100, rng())


@pytest.mark.parametrize("balanced", [False, True])
def test_dirichlet_minimum_that_is_impossible_is_said_at_once(balanced):
    with pytest.raises(InputError, match=r"min_size = 11 for 100 clients needs 1100 samples, there are 1000 .*1 to 10"):
        Dirichlet(alpha=1.0, min_size=11, balanced=balanced).split(np.repeat(np.arange(10), 100), 100, rng())


@pytest.mark.parametrize("alpha", [0.001, 0.1, 1.0, 1000.0])
@pytest.mark.parametrize("clients", [3, 10, 100])
def test_balanced_dirichlet_is_balanced(alpha, clients):
    held = table(Dirichlet(alpha=alpha, balanced=True), clients=clients)
    assert np.ptp(held.sum(1)) <= 1 and (held.sum(0) == 400).all()


@pytest.mark.parametrize("alpha", [0.3, 1.0, 10.0])
def test_balanced_dirichlet_has_the_expected_emd_with_many_clients(alpha):
    held = table(Dirichlet(alpha=alpha, balanced=True), np.repeat(np.arange(10), 50_000), 500)
    assert emd(held).mean() == pytest.approx(expected_emd(alpha, 10), rel=0.1)


def test_balanced_dirichlet_gives_clients_what_they_draw_while_the_stock_lasts():
    """Clients that ask for less than there is of each class get their own distribution, within sampling."""
    held = Dirichlet(alpha=5.0, balanced=True)._balanced(np.full(4, 50_000), 2, rng(3))
    own = rng(3).dirichlet(np.full(4, 5.0), 2)
    asked = own.sum(0) / 2  # of 200,000 places; classes asked for below 1/4 never run out before others do
    scarce = asked < 0.25
    taken = held / held.sum(1, keepdims=True)
    assert scarce.any() and (taken[:, scarce] >= own[:, scarce] - 0.01).all()


@pytest.mark.parametrize("value", [0, 0.0, -1.0, float("nan"), float("inf"), "0.1"])
def test_alpha_that_is_no_concentration(value):
    with pytest.raises(InputError, match="alpha"):
        Dirichlet(alpha=value)


@pytest.mark.parametrize("target", [0.0, 0.36, 0.72, 1.08, 1.44, 1.62, 1.764, 1.8])
@pytest.mark.parametrize("size", [400, 5000])
def test_fixed_emd_reaches_the_eight_levels_of_the_paper(target, size):
    labels = np.repeat(np.arange(10), size)
    distributions = set()
    for seed in range(5):
        shards = FixedEMD(emd=target).split(labels, 10, rng(seed))
        held = counts(labels, shards, 10)
        assert emd(held) == pytest.approx(np.full(10, target), abs=1 / size + 1e-12)
        assert np.array_equal(np.sort(np.concatenate(shards)), np.arange(len(labels)))
        assert all(np.array_equal(held[k], np.roll(held[0], k)) for k in range(10))
        distributions.add(tuple(held[0]))
    assert len(distributions) == (1 if target == 0 else 5) or target == 1.8


def test_fixed_emd_that_cannot_be():
    with pytest.raises(InputError, match="emd = 1.81 with 10 classes .allowed: 0 to 1.8"):
        FixedEMD(emd=1.81).split(DIGITS, 10, rng())
    with pytest.raises(InputError, match="needs a multiple of the classes .allowed: 10, 20"):
        FixedEMD(emd=1.0).split(DIGITS, 15, rng())
    with pytest.raises(InputError, match="smallest class has 1 samples"):
        FixedEMD(emd=1.0).split(np.array([0, 1, 1, 1]), 4, rng())


# ---------------------------------------------------------------------------------------------------- quantity skew


@pytest.mark.parametrize("ratio", [1.0, 10.0, 100.0])
def test_quantity_skew_has_the_ratio_and_iid_labels(ratio):
    labels = np.repeat(np.arange(10), 5000)
    held = table(QuantitySkew(ratio=ratio), labels, 20)
    sizes = held.sum(1)
    assert (np.diff(sizes) <= 0).all() and sizes.sum() == 50000
    assert sizes[0] / sizes[-1] == pytest.approx(ratio, rel=0.01)
    assert mean_emd(held) < 0.1
    logs = np.log(sizes), np.log(np.arange(1, 21))
    assert ratio == 1 or np.corrcoef(*logs)[0, 1] < -0.9999  # a power law


def test_quantity_skew_that_leaves_a_client_empty():
    with pytest.raises(InputError, match="ratio = 1000 .* leaves the smallest client without a sample"):
        QuantitySkew(ratio=1000.0).split(np.repeat(np.arange(10), 10), 20, rng())


# ----------------------------------------------------------------------------------------------------- feature skew


def images(n=12, channels=1, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 16, 16, channels), dtype=np.uint8)


@pytest.mark.parametrize("kind", ["rotation", "colour", "noise"])
@pytest.mark.parametrize("channels", [1, 3])
def test_feature_skew_is_fixed_per_client_and_image(kind, channels):
    p, x, y = FeatureSkew(kind=kind), images(channels=channels), np.arange(12) % 10
    for client in range(4):
        a, labels = p.view(x, y, client, 4, 1)
        assert a.dtype == np.uint8 and a.shape == x.shape and np.array_equal(labels, y)
        assert np.array_equal(a, p.view(x, y, client, 4, 9)[0])
        assert np.array_equal(a[3:7], p.view_test(x[3:7], y[3:7], client, 4, 1)[0])  # whatever else is in the batch
    seen = [p.view(x, y, client, 4, 1)[0] for client in range(4)]
    assert len({s.tobytes() for s in seen}) == 4
    assert np.array_equal(seen[0], x) == (kind != "noise")
    assert np.array_equal(FeatureSkew(kind=kind, strength=0.0).view(x, y, 3, 4, 1)[0], x)


def test_rotation_by_a_quarter_is_a_quarter():
    x = images()
    seen = [FeatureSkew(kind="rotation").view(x, np.zeros(12), k, 4, 1)[0] for k in range(4)]
    for k in range(4):
        assert np.array_equal(seen[k], np.rot90(x, k, axes=(1, 2)))
    half = FeatureSkew(kind="rotation", strength=0.5).view(x, np.zeros(12), 2, 4, 1)[0]
    assert np.array_equal(half, seen[1])


def test_noise_has_the_deviation_of_the_client():
    x = np.full((50, 16, 16, 1), 128, np.uint8)
    x[:, 0, 0, 0] = np.arange(50)  # different images, so different noise
    for client in range(4):
        noise = FeatureSkew(kind="noise", strength=0.2).view(x, np.zeros(50), client, 4, 1)[0][:, 1:] - 128.0
        assert noise.std() / 255 == pytest.approx(0.2 * (client + 1) / 4, rel=0.03)
        assert np.unique(noise.reshape(50, -1), axis=0).shape[0] == 50


def test_colour_of_one_channel_ends_in_the_negative_and_never_greys_out():
    x = images()
    for client in range(11):
        seen = FeatureSkew(kind="colour").view(x, np.zeros(12), client, 11, 1)[0]
        assert seen.std() > 0.24 * x.std()
    assert np.array_equal(seen, 255 - x)


def test_hue_keeps_brightness_and_turns_around():
    x = np.zeros((1, 4, 4, 3), np.uint8)
    x[..., 0] = 255
    seen = [FeatureSkew(kind="colour").view(x, np.zeros(1), k, 3, 1)[0][0, 0, 0].tolist() for k in range(3)]
    assert seen == [[255, 0, 0], [0, 255, 0], [0, 0, 255]]


def test_by_site():
    sites = np.tile([0, 0, 0, 1], 1000)
    shards = BySite().split(DIGITS, 6, rng(), sites)
    assert [set(sites[s]) for s in shards] == [{0}, {1}] * 3
    assert [len(s) for s in shards] == [1000, 334, 1000, 333, 1000, 333]
    equal = BySite(equal_sizes=True).split(DIGITS, 6, rng(), sites)
    assert {len(s) for s in equal} == {333}
    assert all(set(e) <= set(s) for e, s in zip(equal, shards, strict=True))


def test_by_site_that_cannot_be():
    with pytest.raises(InputError, match="needs a data set with several sites"):
        BySite().split(DIGITS, 4, rng())
    with pytest.raises(InputError, match="needs a data set with several sites"):
        BySite().split(DIGITS, 4, rng(), np.zeros(4000, int))
    with pytest.raises(InputError, match="clients = 1 with 2 sites"):
        BySite().split(DIGITS, 1, rng(), np.arange(4000) % 2)
    with pytest.raises(InputError, match="site 1 has 3 samples for its 4 clients"):
        BySite().split(DIGITS, 8, rng(), (np.arange(4000) > 3996).astype(int))


# --------------------------------------------------------------------------------------------------- drift over time


def test_concept_drift_swaps_labels_of_some_clients_from_a_round_on():
    p, x, y = ConceptDrift(fraction=0.3, from_round=5, swap=((0, 1), (7, 2))), images(10), np.arange(10)
    for client in range(10):
        for round in (1, 4, 5, 50):
            seen, labels = p.view(x, y, client, 10, round)
            drifted = client < 3 and round >= 5
            assert seen is x and labels.tolist() == ([1, 0, 7, 3, 4, 5, 6, 2, 8, 9] if drifted else y.tolist())
            assert np.array_equal(labels, p.view_test(x, y, client, 10, round)[1])
    assert p.view(x[:2], np.array([3, 3]), 0, 10, 5)[1].tolist() == [3, 3]  # a client without the swapped classes


@pytest.mark.parametrize("swap", [((0, 0),), ((0, 1), (1, 2)), ((-1, 2),), ()])
def test_swap_that_is_none(swap):
    with pytest.raises(InputError, match="swap"):
        ConceptDrift(fraction=0.5, swap=swap)


def test_swap_of_a_class_that_is_not_there():
    with pytest.raises(InputError, match="with 3 classes .allowed: classes 0 to 2"):
        ConceptDrift(fraction=0.5, swap=((0, 5),)).split(np.array([0, 1, 2]), 2, rng())


def test_temporal_order_shows_the_classes_one_after_another_and_every_sample():
    p = TemporalOrder(window=0.1, period=10)
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 8))
    x = np.arange(80, dtype=np.uint8).reshape(80, 1, 1, 1)
    seen = []
    for round in range(1, 11):
        images_, labels = p.view(x, y, 3, 10, round)
        assert set(labels) == {round - 1} and np.array_equal(y[images_.ravel()], labels)
        seen += images_.ravel().tolist()
    assert sorted(seen) == list(range(80))
    assert np.array_equal(p.view(x, y, 3, 10, 11)[0], p.view(x, y, 3, 10, 1)[0])
    wide = TemporalOrder(window=0.25, period=10).view(x, y, 0, 10, 10)[1]
    assert sorted(set(wide)) == [0, 1, 9] and len(wide) == 20
    assert p.view_test(x, y, 3, 10, 1)[1] is y


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.floats(0.001, 1), st.integers(1, 50), st.integers(1, 200))
def test_temporal_window_is_never_empty_nor_double(n, window, period, round):
    x = np.arange(n, dtype=np.uint8).reshape(n, 1, 1, 1)
    seen = TemporalOrder(window=window, period=period).view(x, np.zeros(n, int), 0, 1, round)[0].ravel()
    assert 1 <= len(seen) <= n and len(set(seen.tolist())) == len(seen)


# --------------------------------------------------------------------------------------------------------- bad input


def test_more_clients_than_samples():
    for p in (Iid(), Shards(classes_per_client=1), Dirichlet(alpha=1.0, min_size=1), QuantitySkew(ratio=2.0)):
        with pytest.raises(InputError, match="clients = 6 with 5 samples .allowed: 1 to 5"):
            p.split(np.array([0, 1, 0, 1, 1]), 6, rng())
    with pytest.raises(InputError, match="clients = 0"):
        Iid().split(DIGITS, 0, rng())


def test_class_that_is_missing():
    with pytest.raises(InputError, match="no sample has class 1"):
        Iid().split(np.array([0, 0, 2, 2]), 2, rng())


def test_class_that_only_left_out_samples_had():
    sites = np.array([0] * 4 + [1] * 100)
    labels = np.array([0, 0, 0, 0] + [1] * 99 + [2])
    with pytest.raises(InputError, match="class 2 is missing on every client"):
        for seed in range(20):
            BySite(equal_sizes=True).split(labels, 2, rng(seed), sites)


def test_labels_and_sites_of_a_wrong_shape():
    with pytest.raises(InputError, match="labels have shape"):
        Iid().split(np.empty(0, int), 1, rng())
    with pytest.raises(InputError, match="one site per sample"):
        BySite().split(DIGITS, 2, rng(), np.zeros(3, int))


# --------------------------------------------------------------------------------------------------- local test sets


def test_client_tests_follow_each_clients_labels():
    test = np.repeat(np.arange(10), 100)
    held = table(Dirichlet(alpha=0.1))
    for client, own in enumerate(client_test(test, held, rng())):
        assert len(np.unique(own)) == len(own) and (np.diff(own) > 0).all()
        got = np.bincount(test[own], minlength=10)
        share = held[client] / held[client].sum()
        assert got.max() == 100  # the largest that is possible
        assert np.abs(got - share * 100 / share.max()).max() <= 0.5 + 1e-9
    again = client_test(test, held, rng())
    assert all(np.array_equal(a, b) for a, b in zip(client_test(test, held, rng()), again, strict=True))


def test_client_tests_of_one_class_and_of_a_site():
    test, sites = np.repeat(np.arange(10), 100), np.arange(1000) % 2
    held = table(Shards(classes_per_client=1))
    assert [len(own) for own in client_test(test, held, rng())] == [100] * 10
    own = client_test(test, held, rng(), sites, np.arange(10) % 2)
    assert [set(sites[o]) for o in own] == [{k % 2} for k in range(10)]


def test_client_test_of_a_class_that_has_no_test_image():
    with pytest.raises(InputError, match="client 1 holds class 2, of which the test set has no image"):
        client_test(np.array([0, 1]), np.array([[1, 1, 0], [0, 1, 1]]), rng())


def test_counts():
    held = counts(np.array([0, 2, 2, 1]), [np.array([0, 1]), np.array([2, 3])], 4)
    assert held.tolist() == [[1, 0, 1, 0], [0, 1, 1, 0]]
