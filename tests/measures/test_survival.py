"""Survival at its closed forms, the estimators' bias, and what the sums keep."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlib import federation
from fedlib.measures.survival import Survival, predicted, signal_and_noise, survival
from fedlib.spec import InputError


def measured(run, updates, sizes=None):
    """The real measure over given updates."""
    measure = Survival()
    scratch = measure.begin(run)
    for k, delta in enumerate(updates):
        measure.observe(scratch, k, 10 if sizes is None else sizes[k], delta, {})
    return measure.finish(scratch, run, None, {})


def noise(run, seed, scale=1.0):
    return scale * torch.randn(len(run.w), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("k", [2, 3, 10])
def test_equal_updates_give_k_and_orthogonal_ones_1_to_machine_precision(run, k):
    delta = noise(run, 0)
    values = measured(run, [delta] * k)
    exact = pytest.approx(k, rel=1e-14)
    assert values["survival"] == exact and values["survival_weighted"] == exact
    assert list(values["survival_layers"]) == run.setting.space.layout.layers()
    assert all(v == exact for v in values["survival_layers"].values())
    assert values["diversity"] == pytest.approx(1 / k, rel=1e-14)
    assert values["survival_noise"] == pytest.approx(0, abs=1e-11)
    if k == 10:
        assert values["survival_predicted"] == exact
    basis = torch.eye(len(run.w))[:k] * torch.arange(1, k + 1)[:, None]
    values = measured(run, list(basis), sizes=list(range(5, 5 + k)))
    assert values["survival"] == pytest.approx(1, rel=1e-14)
    assert values["survival_weighted"] == pytest.approx(1, rel=1e-14)


def test_updates_that_cancel_and_weights(run):
    delta = noise(run, 1)
    assert measured(run, [delta, -delta])["survival"] == 0
    assert "diversity" not in measured(run, [delta, -delta])  # infinite
    values = measured(run, [delta, -delta], sizes=[3, 1])
    assert values["survival"] == 0 and values["survival_weighted"] == pytest.approx(4 / 10)  # (3 - 1)^2 / (9 + 1)
    assert measured(run, [0 * delta, 0 * delta]) == {}


def test_layers_that_no_client_changed_have_no_value(run):
    delta = noise(run, 2)
    delta[run.setting.space.layout.select("head")] = 0
    values = measured(run, [delta, delta])
    assert "head" not in values["survival_layers"] and "fc1" in values["survival_layers"]


def test_against_numpy(run):
    sizes = [3, 8, 1, 20, 7]
    updates = [noise(run, k) + 0.3 for k in range(5)]
    d, n = np.stack([u.double().numpy() for u in updates]), np.array(sizes)
    values = measured(run, updates, sizes)
    assert values["survival"] == pytest.approx((d.sum(0) ** 2).sum() / (d**2).sum())
    p = n / n.sum()
    assert values["survival_weighted"] == pytest.approx(((p @ d) ** 2).sum() / (p**2 @ (d**2).sum(1)))
    mask = run.setting.space.layout.select("conv2").numpy()
    assert values["survival_layers"]["conv2"] == pytest.approx((d[:, mask].sum(0) ** 2).sum() / (d[:, mask] ** 2).sum())


def test_estimators_are_unbiased():
    rng = np.random.default_rng(0)
    trials, k, d, sigma = 4000, 5, 8, 0.7
    mu = rng.standard_normal(d)
    updates = mu + sigma * rng.standard_normal((trials, k, d))
    a, b = (updates**2).sum(2).mean(1), (updates.mean(1) ** 2).sum(1)
    signals, noises = signal_and_noise(a, b, k)
    for estimates, truth in ((signals, mu @ mu), (noises, d * sigma**2)):
        assert abs(estimates.mean() - truth) < 4 * estimates.std() / np.sqrt(trials)
    biased = np.abs(b.mean() - mu @ mu)  # the naive estimate of the signal is off by sigma^2 / k
    assert biased > 10 * b.std() / np.sqrt(trials)


@given(st.integers(2, 50), st.floats(1e-3, 1e3), st.floats(0, 1))
def test_prediction_from_the_same_updates_is_an_identity(k, mean_square, share):
    """Why the measure predicts from halves: by Eqs. 9-14 alone, 1 / D_S = (K r + 1) / (r + 1) cannot fail."""
    square_of_mean = share * mean_square
    value = predicted(*signal_and_noise(mean_square, square_of_mean, k), k)
    assert value == pytest.approx(survival(mean_square, square_of_mean, k), rel=1e-9, abs=1e-9)


def test_prediction_from_halves_holds_for_signal_plus_noise_and_can_fail(run):
    mu, k = noise(run, 100, 0.5), 40
    values = measured(run, [mu + noise(run, i) for i in range(k)])
    r = 0.25
    assert values["survival_predicted"] == pytest.approx((k * r + 1) / (r + 1), rel=0.1)
    assert values["survival_predicted"] == pytest.approx(values["survival"], rel=0.1)
    opposed = measured(run, [mu, -mu] * 4)  # each half agrees with itself, and they cancel
    assert opposed["survival"] == 0 and opposed["survival_predicted"] == pytest.approx(8)
    assert "survival_predicted" not in measured(run, [mu, mu, mu])


def test_single_gradients(run):
    """Batches of all samples give the full gradient; updates of one full-batch step are its multiples."""
    e = run.experiment.but(batch_size=None, measures=(Survival(gradients=True),))
    one = federation.begin(e)
    for _ in federation.play(one, until=1):
        pass
    first = {name: series["value"][0] for name, series in one.series.items()}
    assert first["survival_batch_gradient"] == first["survival_full_gradient"]
    assert first["survival"] == pytest.approx(first["survival_full_gradient"], rel=1e-4)
    assert first["survival_signal"] == pytest.approx(e.lr**2 * first["survival_signal_full_gradient"], rel=1e-3)
    small = federation.begin(e.but(batch_size=2))
    for _ in federation.play(small, until=1):
        pass
    assert small.series["survival_full_gradient"]["value"] == [first["survival_full_gradient"]]
    assert small.series["survival_batch_gradient"]["value"][0] != first["survival_full_gradient"]
    assert small.series["gradients"]["value"] == one.series["gradients"]["value"]  # measuring is not training


def test_one_client_a_round_is_refused(run):
    with pytest.raises(InputError, match="per_round"):
        Survival().check(run.experiment.but(per_round=1))
