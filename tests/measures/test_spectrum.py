"""Spectra with known answers, and the identities D11 and D12 of the ledger."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedlib import federation
from fedlib.measures.spectrum import Spectrum, covariance, effective_rank, representations, singular_values


def test_known_covariance():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    known = np.array([9.0, 4.0, 1.0, 0.25, 0.0, 0.0])
    z = rng.standard_normal((50, 6))
    z = (z - z.mean(0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(z.T, bias=True))).T  # covariance exactly I
    z = z * np.sqrt(known) @ basis.T + 7
    assert singular_values(covariance(z)) == pytest.approx(known, abs=1e-12)
    assert (singular_values(covariance(z))[4:] == 0).all()
    assert covariance(z) == pytest.approx(np.cov(z.T, bias=True))


def test_effective_rank():
    for d in (1, 7, 64):
        assert effective_rank(singular_values(np.eye(d))) == pytest.approx(d)
        assert effective_rank(singular_values(3.5 * np.eye(d))) == pytest.approx(d)
    assert effective_rank(np.array([5.0, 0, 0])) == pytest.approx(1)
    assert effective_rank(np.array([3.0, 1.0])) == pytest.approx(np.exp(0.75 * np.log(4 / 3) + 0.25 * np.log(4)))
    assert effective_rank(np.zeros(4)) == 0


samples = st.integers(2, 6).flatmap(lambda d: arrays(float, (12, d), elements=st.floats(-10, 10)))


@settings(max_examples=60, deadline=None)
@given(samples)
def test_z_scoring_makes_a_correlation_matrix_and_its_spectrum_obeys_the_identity(x):
    """D12: unit diagonal, so the eigenvalues' mean is 1; D11: sum (lambda_i - mean)^2 = ||K||_F^2 - d."""
    assume(x.std(0).min() > 1e-2)
    k, d = covariance((x - x.mean(0)) / x.std(0)), x.shape[1]
    assert np.diag(k) == pytest.approx(np.ones(d))
    assert k == pytest.approx(np.corrcoef(x.T), abs=1e-9)
    values = singular_values(k)
    assert values.mean() == pytest.approx(1)
    assert ((values - values.mean()) ** 2).sum() == pytest.approx(np.linalg.norm(k) ** 2 - d, abs=1e-9)
    assert np.linalg.norm(k) ** 2 >= np.linalg.norm(np.eye(d)) ** 2 - 1e-9  # both penalties are least at K = I


def test_measure_against_svd_of_the_centred_representations(run):
    s, measure = run.setting, Spectrum(images=200, top=2)
    client = federation.new_client(s, 0, 1, run.w, {}, {}, 0.1)
    values = measure.client(client)
    from fedlib.measures.objective import sample

    z = representations(s.space, run.w, sample(s, "test", 200)[0])
    assert z.shape == (200, 3)
    direct = np.linalg.svd(z - z.mean(0), compute_uv=False) ** 2 / 200
    assert values["spectrum"] == pytest.approx(direct[:2], rel=1e-4)
    assert values["effective_rank"] == pytest.approx(effective_rank(direct), rel=1e-4)
    assert values["dead_features"] == (z.var(0) < 1e-8).sum()


def test_dead_features_are_those_whose_relu_never_opens(run):
    s, w = run.setting, run.w.clone()
    s.space.layout.view(w, "body.fc1.weight")[1] = 0
    s.space.layout.view(w, "body.fc1.bias")[1] = -1
    alive = Spectrum(images=100)._measure(s.space, s, run.w)["dead_features"]
    assert Spectrum(images=100)._measure(s.space, s, w)["dead_features"] >= max(1, alive)
    assert representations(s.space, w, s.dataset.x_test[:50])[:, 1].max() == 0
