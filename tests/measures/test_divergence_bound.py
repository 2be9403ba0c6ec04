"""The bound of Zhao et al. 2018, Prop. 3.1: against a closed form, and as a bound."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlib import federation, partitions
from fedlib.experiment import Experiment
from fedlib.measures.divergence_bound import DivergenceBound, class_gradients, follow
from fedlib.models import CNN
from fedlib.partitions import Shards
from fedlib.schedules import Exponential
from fedlib.spec import InputError

LR = 0.1


def quadratic(h: list[float], centres: torch.Tensor):
    """g_i(w) = h_i (w - a_i): the gradients of quadratics, whose Lipschitz constants are the h_i."""
    curvature = torch.tensor(h, dtype=centres.dtype)[:, None]
    return lambda w: curvature * (w - centres)


def test_one_class_each_and_one_curvature_has_a_closed_form():
    centres = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    found = follow(quadratic([2.0, 2.0], centres), torch.zeros(2, dtype=torch.float64), np.eye(2), np.ones(2), LR, 4)
    # The twin stays at 0, where both gradients have norm 2; a client is at 1 - (1 - 2 lr)^t of the way to its centre.
    t = np.arange(1, 5)
    np.testing.assert_allclose(found["average"], 0, atol=1e-12)
    np.testing.assert_allclose(found["clients"], 1 - (1 - 2 * LR) ** t)
    # EMD is 1, so that d(t) = (1 + 2 lr) d(t - 1) + 2 lr, which is (1 + 2 lr)^t - 1.
    np.testing.assert_allclose(found["bound"], (1 + 2 * LR) ** t - 1)


@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(2, 4))
def test_it_is_a_bound(seed, clients, classes):
    rng = np.random.default_rng(seed)
    centres = torch.from_numpy(rng.standard_normal((classes, 3)))
    gradients = quadratic(rng.uniform(0.1, 3, classes).tolist(), centres)
    shares = rng.dirichlet(np.full(classes, 0.5), clients)
    found = follow(gradients, torch.from_numpy(rng.standard_normal(3)), shares, rng.integers(1, 9, clients), LR, 6)
    assert (found["average"] <= found["clients"] + 1e-9).all() and (found["clients"] <= found["bound"] + 1e-9).all()


def test_iid_clients_do_not_diverge():
    gradients = quadratic([1.0, 3.0], torch.randn(2, 3, generator=torch.Generator().manual_seed(0)))
    found = follow(gradients, torch.ones(3), np.full((3, 2), 0.5), np.ones(3), LR, 5)
    for values in found.values():
        np.testing.assert_allclose(values, 0, atol=1e-6)


def test_shares_that_are_none_are_refused():
    with pytest.raises(InputError, match="sum to 1"):
        follow(quadratic([1.0, 1.0], torch.zeros(2, 2)), torch.zeros(2), np.ones((2, 2)), np.ones(2), LR, 1)


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_in_a_run_it_follows_the_clients_from_the_weights_and_at_the_rate_of_each_round(norm):
    measure = DivergenceBound(steps=3, images=4)
    e = Experiment(
        clients=5, train_images=200, rounds=2, lr=0.05, model=CNN(channels=(4, 8), dense=(), norm=norm),
        schedule=Exponential(decay=0.5), partition=Shards(classes_per_client=2), measures=(measure,), evaluate_every=2,
    )  # fmt: skip
    run = federation.begin(e)
    starts = [run.w.clone(), *(one.w.clone() for one in federation.play(run))]
    assert run.series["divergence_bound"]["round"] == [1, 2]
    s, trained = run.setting, run.setting.space.trained
    shares = torch.from_numpy(partitions.counts(s.dataset.y_train, s.shards, s.classes)).float()
    for start, lr, found in zip(starts[:-1], (0.05, 0.025), run.series["divergence_bound"]["value"], strict=True):
        assert all(0 <= a <= c <= b for a, c, b in zip(*found.values(), strict=True))
        # One step of clients with two classes in halves, from which the twin takes one along the mean of all gradients.
        g = class_gradients(s, start, 4)(start[:trained])
        steps = lr * (shares / shares.sum(1, keepdim=True) - 0.1) @ g
        assert found["clients"][0] == pytest.approx(float(steps.norm(dim=1).mean()), rel=1e-4)
        assert found["average"][0] == pytest.approx(0, abs=1e-5)
        assert found["bound"][0] == pytest.approx(lr * 1.6 * float(g.norm(dim=1).max()), rel=1e-4), "EMD 1.6"
