import numpy as np
import pytest
from dp_accounting import get_epsilon_gaussian
from examples import ONE_CLASS

from fedlib import federation
from fedlib.methods import Condensed, DataSharing, Private, Quantised
from fedlib.methods.copies import sizes
from fedlib.spec import InputError


def test_noise_is_the_accountants():
    """dp-accounting's own example: one Gaussian query of sensitivity 1 at standard deviation 1/3 has
    (1, .78760074). Ours has sensitivity 2C/m."""
    assert Private(epsilon=1.0, delta=0.78760074, clip=0.5).noise() == pytest.approx(1 / 3, abs=1e-7)
    assert Private(epsilon=1.0, delta=0.78760074, clip=5.0, group=20).noise() == pytest.approx(1 / 6, abs=1e-7)
    strict = Private()
    assert get_epsilon_gaussian(strict.noise() / (2 * strict.clip), strict.delta) == pytest.approx(0.3, rel=1e-6)


def test_the_accountants_two_ways_agree():
    """Its privacy-loss-distribution accountant, an independent computation, gives the same epsilon."""
    from dp_accounting import GaussianDpEvent
    from dp_accounting.pld import PLDAccountant

    method = Private(epsilon=2.0, delta=1e-4, clip=3.0, group=2)
    accountant = PLDAccountant().compose(GaussianDpEvent(method.noise() / (2 * method.clip / method.group)))
    assert accountant.get_epsilon(1e-4) == pytest.approx(2.0, abs=1e-3)


def shared(copy, beta=0.05):
    method = DataSharing(beta=beta, copies=(copy,))
    s = federation.Setting(ONE_CLASS.but(methods=(method,)))
    return s, method, method.shared(s)


def test_it_is_made_of_the_images_themselves():
    federation.check(ONE_CLASS.but(methods=(DataSharing(beta=0.05, copies=(Private(group=2), Quantised())),)))
    with pytest.raises(InputError, match=r"Private has to be made of the images themselves \(allowed: as the first\)"):
        federation.check(ONE_CLASS.but(methods=(DataSharing(beta=0.05, copies=(Quantised(), Private())),)))


def test_a_copy_of_copies_gets_what_it_asked_for():
    """Condensed asks for its pool, which private images of two real ones each are."""
    chain = (Private(group=2), Condensed(pool=3, iterations=1))
    method = DataSharing(beta=0.05, copies=chain)
    s = federation.Setting(ONE_CLASS.but(methods=(method,)))
    assert sizes(s, chain, 20) == [60, 30, 20]
    assert len(method.reserves(s)) == 60
    g = method.shared(s)
    assert len(g.y) == len(g.x) == 20 and g.bits == 8


@pytest.mark.parametrize("group", [1, 4])
def test_without_noise_it_is_the_mean_of_clipped_images_of_one_class(group):
    copy = Private(epsilon=1e9, delta=0.5, clip=8.0, group=group)
    s, method, g = shared(copy)
    drawn = method.reserves(s)
    assert len(g.y) == 20 and len(drawn) == 20 * group and (np.bincount(g.y) == 2).all()
    own = s.dataset.x_train[drawn[s.dataset.y_train[drawn] == g.y[0]]][:group] / 255 - 0.5
    norms = np.linalg.norm(own.reshape(group, -1), axis=1)
    assert norms.min() > 8  # digits are clipped
    expected = (own * (8 / norms)[:, None, None, None]).mean(0)
    assert np.abs(g.x[0] / 255 - 0.5 - expected).max() < 0.51 / 255 + 1e-3


def test_noise_has_the_stated_deviation_and_fills_the_range_as_stated():
    s, _, g = shared(Private(epsilon=0.3))
    values = g.x / 255 - 0.5
    inside = np.abs(values) < 0.499
    assert values.std() == pytest.approx(0.24, abs=0.01) and inside.mean() == pytest.approx(0.954, abs=0.01)
    s, method, g = shared(Private(epsilon=1000.0, clip=1.0))  # sigma below a quarter: sent as it is
    sigma = Private(epsilon=1000.0, clip=1.0).noise()
    assert sigma < 0.1
    own = s.dataset.x_train[method.reserves(s)] / 255 - 0.5
    clean = own / np.linalg.norm(own.reshape(len(own), -1), axis=1)[:, None, None, None]
    assert (g.x / 255 - 0.5 - clean).std() == pytest.approx(sigma, rel=0.02)
