import numpy as np
import pytest
from examples import ONE_CLASS

from fedlib import federation
from fedlib.measures.emd import emd
from fedlib.methods import ByEMD, DataSharing, EqualBudget
from fedlib.partitions import Dirichlet, Shards, counts
from fedlib.spec import InputError

MIXED = ONE_CLASS.but(train_images=600, clients=6, partition=Dirichlet(alpha=2.0))


def sent(policy):
    method = DataSharing(beta=0.1, policy=policy)
    s = federation.Setting(MIXED.but(methods=(method,)))
    return s, np.array([len(method.received(s, k).y) for k in range(6)])


@pytest.mark.parametrize("low, high", [(0.5, 1.2), (0.45, 0.7)])  # the claim's, and some that put clients in each tier
def test_tiers_follow_the_clients_emd_and_the_uniform_policy_costs_the_same(low, high):
    policy = ByEMD(thresholds=(low, high))
    s, tiered = sent(policy)
    distance = emd(counts(s.dataset.y_train, s.shards, 10))
    assert len(set(tiered)) == (2 if high > 1 else 3)
    expected = 60 * np.select([distance < low, distance < high], [0.0, 0.3], 0.7)
    assert np.array_equal(tiered, np.rint(expected))
    _, alike = sent(EqualBudget(of=policy))
    assert np.ptp(alike) == 0 and abs(alike.sum() - tiered.sum()) <= 6 / 2  # half a sample a client for rounding


def test_a_threshold_belongs_to_the_upper_tier():
    method = DataSharing(beta=0.1, policy=ByEMD(thresholds=(0.5, 1.8)))
    s = federation.Setting(MIXED.but(clients=10, partition=Shards(classes_per_client=1), methods=(method,)))
    assert emd(counts(s.dataset.y_train, s.shards, 10)).max() == pytest.approx(1.8)
    assert len(method.received(s, 0).y) in (18, 42)  # 1.8 to within the last bit


@pytest.mark.parametrize("fields", [
    {"thresholds": (1.2, 0.5)}, {"thresholds": (0.5, 2.0)}, {"parts": (0.0, 0.3)}, {"parts": (0.0, 0.3, 1.1)},
])  # fmt: skip
def test_bad_tiers_are_refused(fields):
    with pytest.raises(InputError, match="allowed"):
        ByEMD(**fields)
