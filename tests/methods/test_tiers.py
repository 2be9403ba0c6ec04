import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedlib.methods.tiers import tiers


@given(st.integers(1, 60), st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 5))
def test_tiers_have_their_shares(clients, parts, seed):
    shares = tuple(part / sum(parts) for part in parts)
    tier = tiers(seed, clients, shares)
    assert len(tier) == clients and set(tier) <= set(range(len(shares)))
    assert np.abs(np.bincount(tier, minlength=len(shares)) - np.array(shares) * clients).max() <= 1 + 1e-9
